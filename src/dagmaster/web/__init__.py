"""What every HTTP server of dagmaster shares: middleware, problem details, and the server itself."""
