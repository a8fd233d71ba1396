"""The service: one program that proxies and programs in any language ask, over HTTP, gRPC and RESP.

The data plane is one asyncio protocol per wire format, without a framework (http1.py, http2.py, resp.py). The control
plane is a Starlette application on a port of its own. Both use the engine (engine.py), which decides.
"""
