"""Reports as one HTML file: the frame, its tables and its pictures. The ledger, replay and load tests fill them."""
