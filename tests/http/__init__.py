"""What HTTP says about limits: addresses, header fields, rejections."""
