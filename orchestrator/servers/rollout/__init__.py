"""Rolling updates of replicas behind the gateway."""
