// One role as a container app: an image, an identity, settings, probes and scaling.
//
// UNTESTED: neither compiled nor deployed.

param name string
param location string
param environmentId string
param registryServer string
param image string
param identityId string
param settings array
param port int
param hasIngress bool = true
param isExternal bool = false
param cpu string
param memory string
param minReplicas int
param maxReplicas int

@description('Queues of Service Bus whose length is used for scaling, and the number of tasks per replica.')
param scaledQueues array = []
param tasksPerReplica int = 1
param busNamespace string = ''

@description('Identity that reads the length of the queues. Containers cannot use it.')
param scalerIdentityId string = ''

var onQueues = [for queue in scaledQueues: {
  name: queue
  custom: {
    type: 'azure-servicebus'
    metadata: { queueName: queue, namespace: busNamespace, messageCount: string(tasksPerReplica) }
    identity: scalerIdentityId
  }
}]
var onRequests = [{ name: 'requests', http: { metadata: { concurrentRequests: '50' } } }]
// Without Service Bus the length of queues is in PostgreSQL, whose scaler needs a password: docs/guides/azure.md.
var onProcessor = [{ name: 'cpu', custom: { type: 'cpu', metadata: { type: 'Utilization', value: '70' } } }]

resource app 'Microsoft.App/containerApps@2025-01-01' = {
  name: name
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: union({ '${identityId}': {} }, empty(scalerIdentityId) ? {} : { '${scalerIdentityId}': {} })
  }
  properties: {
    environmentId: environmentId
    configuration: {
      activeRevisionsMode: 'Single'
      registries: [{ server: registryServer, identity: identityId }]
      identitySettings: empty(scalerIdentityId) ? [] : [{ identity: scalerIdentityId, lifecycle: 'None' }]
      ingress: hasIngress ? { external: isExternal, targetPort: port, transport: 'auto', allowInsecure: false } : null
    }
    template: {
      terminationGracePeriodSeconds: 60
      containers: [
        {
          name: 'main'
          image: '${registryServer}/${image}'
          // Probes of workers come from outside of the container.
          env: concat(settings, hasIngress ? [] : [
            { name: 'HEALTH_HOST', value: '0.0.0.0' }
            { name: 'HEALTH_INSECURE', value: 'true' }
          ])
          resources: { cpu: json(cpu), memory: memory }
          probes: [
            // Two minutes in all: a failureThreshold above 10 is not allowed.
            { type: 'Startup', httpGet: { path: '/livez', port: port }, periodSeconds: 12, failureThreshold: 10, timeoutSeconds: 5 }
            { type: 'Liveness', httpGet: { path: '/livez', port: port }, periodSeconds: 15, failureThreshold: 4, timeoutSeconds: 5 }
            { type: 'Readiness', httpGet: { path: '/readyz', port: port }, periodSeconds: 5, timeoutSeconds: 5 }
          ]
          volumeMounts: [{ volumeName: 'scratch', mountPath: '/data/scratch' }, { volumeName: 'tmp', mountPath: '/tmp' }]
        }
      ]
      volumes: [{ name: 'scratch', storageType: 'EmptyDir' }, { name: 'tmp', storageType: 'EmptyDir' }]
      scale: {
        minReplicas: minReplicas
        maxReplicas: maxReplicas
        rules: hasIngress ? onRequests : (empty(scaledQueues) ? onProcessor : onQueues)
      }
    }
  }
}
