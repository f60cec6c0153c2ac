"""The gateway as an Azure Functions app. Its settings are the application settings of the function app.

Authentication by the host is disabled (`ANONYMOUS`): the gateway verifies keys and tokens itself.
"""

import azure.functions as func

from dagmaster.gateway.hosted import hosted_gateway
from dagmaster.observe import log
from dagmaster.settings import load

settings = load()
log.configure(settings.log_level, settings.log_format)
app = func.AsgiFunctionApp(app=hosted_gateway(settings), http_auth_level=func.AuthLevel.ANONYMOUS)
