// The platform on Azure Container Apps, with managed identities and no passwords.
//
// UNTESTED: this template was neither compiled nor deployed; a test compares its names with those of the code.
// docs/guides/azure.md has the steps before and after it. scripts/deploy.sh azure sets new images later.

targetScope = 'resourceGroup'

@description('First part of the names of all resources: lower-case letters, digits and hyphens.')
@minLength(3)
@maxLength(12)
param prefix string = 'dagmaster'

param location string = resourceGroup().location

@description('Name of an existing container registry of this resource group, with the images of scripts/deploy.sh.')
param registryName string

@description('Tag of the images; never latest.')
param imageVersion string

@description('Public address (https://…) of the API, the web pages and the maps.')
param publicUrl string

@description('Issuer of OIDC tokens, and the audience that they must name. Empty: API keys only.')
param oidcIssuer string = ''
param oidcAudience string = ''

@description('Subnet of the container apps, and the one that is delegated to the database.')
param appsSubnetId string
param databaseSubnetId string
param databaseDnsZoneId string

@description('Size of the database, and whether it has a standby in another zone.')
param databaseSku string = 'Standard_D4ds_v5'
param isHighlyAvailable bool = true

@description('Announce tasks through Service Bus (TRANSPORT=servicebus) instead of notifications of PostgreSQL.')
param usesServiceBus bool = false

var queues = ['functionapp-tasks', 'container-tasks', 'dag-worker-tasks']
var jobQueue = 'dag-jobs'
var databaseName = 'dagmaster'
var containers = ['bronze', 'silver', 'external']
var servedContainers = [1, 2] // map servers read silver and external, not the raw data in bronze

// Identities. Their names are also roles in PostgreSQL; `dagmaster db deploy` expects those of gateway and map server.

resource platformIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${databaseName}_platform'
  location: location
}

resource servingIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${databaseName}_serving'
  location: location
}

resource gatewayIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${databaseName}_gateway'
  location: location
}

resource adminIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${databaseName}_admin'
  location: location
}

// Reads the length of queues for Container Apps, which needs a management role. Containers cannot use this identity.
resource scalerIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = if (usesServiceBus) {
  name: '${databaseName}_scaler'
  location: location
}

// Only built-in roles are used: docs/guides/azure.md says which identity needs which role, and why.

var roles = {
  acrPull: '7f951dda-4ed3-4680-a7ca-43fe172d538d'
  storageBlobDataContributor: 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
  storageBlobDataReader: '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1'
  storageBlobDelegator: 'db58b8e5-c6ad-4a2a-8342-4190687cbf4a'
  serviceBusDataSender: '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
  serviceBusDataReceiver: '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
  serviceBusDataOwner: '090c5cfd-751d-490a-894a-3ce6f1109419'
}

resource registry 'Microsoft.ContainerRegistry/registries@2023-07-01' existing = {
  name: registryName
}

resource platformPulls 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(registry.id, 'platform', roles.acrPull)
  scope: registry
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.acrPull)
    principalId: platformIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource servingPulls 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(registry.id, 'serving', roles.acrPull)
  scope: registry
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.acrPull)
    principalId: servingIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource gatewayPulls 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(registry.id, 'gateway', roles.acrPull)
  scope: registry
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.acrPull)
    principalId: gatewayIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource adminPulls 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(registry.id, 'admin', roles.acrPull)
  scope: registry
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.acrPull)
    principalId: adminIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

// Storage: account keys are disabled; map servers only read.

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: take('${replace(prefix, '-', '')}${uniqueString(resourceGroup().id)}', 24)
  location: location
  kind: 'StorageV2'
  sku: { name: 'Standard_ZRS' }
  properties: {
    allowSharedKeyAccess: false
    allowBlobPublicAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: storage
  name: 'default'
  properties: {
    deleteRetentionPolicy: { enabled: true, days: 14 }
  }
}

resource zones 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = [for name in containers: {
  parent: blobs
  name: name
}]

resource platformWritesBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, 'platform', roles.storageBlobDataContributor)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.storageBlobDataContributor)
    principalId: platformIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource platformSignsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, 'platform', roles.storageBlobDelegator)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.storageBlobDelegator)
    principalId: platformIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource servingReadsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for index in servedContainers: {
  name: guid(storage.id, containers[index], 'serving', roles.storageBlobDataReader)
  scope: zones[index]
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.storageBlobDataReader)
    principalId: servingIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}]

resource servingSignsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, 'serving', roles.storageBlobDelegator)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.storageBlobDelegator)
    principalId: servingIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

// PostgreSQL: logins by token only, in a private network, with PostGIS.

resource postgres 'Microsoft.DBforPostgreSQL/flexibleServers@2024-08-01' = {
  name: '${prefix}-${uniqueString(resourceGroup().id)}'
  location: location
  sku: { name: databaseSku, tier: 'GeneralPurpose' }
  properties: {
    version: '16'
    storage: { storageSizeGB: 256, autoGrow: 'Enabled' }
    authConfig: { activeDirectoryAuth: 'Enabled', passwordAuth: 'Disabled', tenantId: tenant().tenantId }
    highAvailability: { mode: isHighlyAvailable ? 'ZoneRedundant' : 'Disabled' }
    backup: { backupRetentionDays: 14, geoRedundantBackup: 'Disabled' }
    network: { delegatedSubnetResourceId: databaseSubnetId, privateDnsZoneArmResourceId: databaseDnsZoneId }
  }
}

// One after the other: the server refuses a change while another one is under way (ServerIsBusy).
resource database 'Microsoft.DBforPostgreSQL/flexibleServers/databases@2024-08-01' = {
  parent: postgres
  name: databaseName
  properties: { charset: 'UTF8', collation: 'C' }
}

resource extensions 'Microsoft.DBforPostgreSQL/flexibleServers/configurations@2024-08-01' = {
  parent: postgres
  name: 'azure.extensions'
  properties: { value: 'POSTGIS,BTREE_GIST,UNACCENT', source: 'user-override' }
  dependsOn: [database]
}

module databaseAdmin 'administrator.bicep' = {
  name: '${prefix}-administrator'
  params: { serverName: postgres.name, principalId: adminIdentity.properties.principalId, principalName: adminIdentity.name }
  dependsOn: [extensions]
}

// Service Bus: the platform sends and receives; it may not change queues.

resource bus 'Microsoft.ServiceBus/namespaces@2024-01-01' = if (usesServiceBus) {
  name: '${prefix}-${uniqueString(resourceGroup().id)}'
  location: location
  sku: { name: 'Standard', tier: 'Standard' }
  properties: { disableLocalAuth: true, minimumTlsVersion: '1.2' }
}

resource busQueues 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = [for name in concat(queues, [jobQueue]): if (usesServiceBus) {
  parent: bus
  name: name
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    defaultMessageTimeToLive: 'P1D'
    deadLetteringOnMessageExpiration: name == jobQueue
  }
}]

resource platformSends 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (usesServiceBus) {
  name: guid(resourceGroup().id, 'platform', roles.serviceBusDataSender)
  scope: bus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.serviceBusDataSender)
    principalId: platformIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource platformReceives 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (usesServiceBus) {
  name: guid(resourceGroup().id, 'platform', roles.serviceBusDataReceiver)
  scope: bus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.serviceBusDataReceiver)
    principalId: platformIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

resource scalerReadsLengths 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (usesServiceBus) {
  name: guid(resourceGroup().id, 'scaler', roles.serviceBusDataOwner)
  scope: bus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles.serviceBusDataOwner)
    principalId: scalerIdentity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}

// Container apps

resource logs 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: '${prefix}-logs'
  location: location
  properties: { sku: { name: 'PerGB2018' }, retentionInDays: 30 }
}

resource environment 'Microsoft.App/managedEnvironments@2025-01-01' = {
  name: '${prefix}-apps'
  location: location
  properties: {
    vnetConfiguration: { infrastructureSubnetId: appsSubnetId }
    workloadProfiles: [{ name: 'Consumption', workloadProfileType: 'Consumption' }]
    appLogsConfiguration: {
      destination: 'log-analytics'
      logAnalyticsConfiguration: { customerId: logs.properties.customerId, sharedKey: logs.listKeys().primarySharedKey }
    }
  }
}

var host = postgres.properties.fullyQualifiedDomainName
// Apps reach each other with TLS, because requests contain the credentials of callers; HTTP is redirected.
var domain = environment.properties.defaultDomain
var server = 'postgresql://${platformIdentity.name}@${host}:5432/${databaseName}?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt'
var servingServer = 'postgresql://${servingIdentity.name}@${host}:5432/${databaseName}?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt'
var gatewayServer = 'postgresql://${gatewayIdentity.name}@${host}:5432/${databaseName}?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt'

// No secrets: processes log in with tokens of their managed identities.
var common = [
  { name: 'LOG_FORMAT', value: 'json' }
  { name: 'AUTH_ENABLED', value: 'true' }
  { name: 'USE_MANAGED_IDENTITY', value: 'true' }
  { name: 'PUBLIC_URL', value: publicUrl }
]
var oidc = empty(oidcIssuer) ? [] : [
  { name: 'OIDC_ISSUER', value: oidcIssuer }
  { name: 'OIDC_AUDIENCE', value: oidcAudience }
]
var zonesInAzure = [
  { name: 'STORAGE_BACKEND', value: 'azure' }
  { name: 'AZURE_STORAGE_ACCOUNT_NAME', value: storage.name }
]
var transport = usesServiceBus ? [
  { name: 'TRANSPORT', value: 'servicebus' }
  { name: 'SERVICE_BUS_FQDN', value: '${bus.name}.servicebus.windows.net' }
] : []
var platform = concat(common, oidc, zonesInAzure, transport, [
  { name: 'DATABASE_URL', value: server }
  { name: 'AZURE_CLIENT_ID', value: platformIdentity.properties.clientId }
])

// Changes of the schema: a job that scripts/deploy.sh starts with the new image before it sets the images of the roles.
// It has one container, because `az containerapp job update --image` sets only the image of one container, not of init
// containers.
resource schema 'Microsoft.App/jobs@2025-01-01' = {
  name: '${prefix}-schema'
  location: location
  identity: { type: 'UserAssigned', userAssignedIdentities: { '${adminIdentity.id}': {} } }
  properties: {
    environmentId: environment.id
    configuration: {
      triggerType: 'Manual'
      replicaTimeout: 1800
      replicaRetryLimit: 1
      manualTriggerConfig: { parallelism: 1, replicaCompletionCount: 1 }
      registries: [{ server: registry.properties.loginServer, identity: adminIdentity.id }]
    }
    template: {
      containers: [
        {
          name: 'schema'
          image: '${registry.properties.loginServer}/dagmaster-orchestrator:${imageVersion}'
          args: ['db', 'deploy', '--migrate']
          env: schemaSettings
          resources: { cpu: json('0.5'), memory: '1Gi' }
        }
      ]
    }
  }
  dependsOn: [adminPulls, databaseAdmin, database, extensions]
}

var schemaSettings = [
  { name: 'USE_MANAGED_IDENTITY', value: 'true' }
  { name: 'DATABASE_URL', value: server }
  { name: 'DB_ADMIN_MANAGED_IDENTITY_CLIENT_ID', value: adminIdentity.properties.clientId }
  { name: 'DB_ADMIN_USER', value: adminIdentity.name }
]

module orchestrator 'app.bicep' = {
  name: '${prefix}-orchestrator'
  params: {
    name: '${prefix}-orchestrator'
    location: location
    environmentId: environment.id
    registryServer: registry.properties.loginServer
    image: 'dagmaster-orchestrator:${imageVersion}'
    identityId: platformIdentity.id
    settings: concat(platform, [{ name: 'SERVING_URLS', value: 'https://${prefix}-serving.internal.${domain}' }])
    port: 8000
    isExternal: true
    cpu: '1'
    memory: '2Gi'
    minReplicas: 2
    maxReplicas: 2
  }
  dependsOn: [platformPulls]
}

module workerLight 'app.bicep' = {
  name: '${prefix}-worker-light'
  params: {
    name: '${prefix}-worker-light'
    location: location
    environmentId: environment.id
    registryServer: registry.properties.loginServer
    image: 'dagmaster-worker:${imageVersion}'
    identityId: platformIdentity.id
    settings: concat(platform, [
      { name: 'WORKER_TYPE', value: 'light' }
      { name: 'WORKER_QUEUE', value: 'functionapp-tasks,dag-worker-tasks' }
      { name: 'WORKER_PROCESSES', value: '2' }
      { name: 'WORKER_MEMORY_MB', value: '1024' }
    ])
    port: 8002
    hasIngress: false
    cpu: '2'
    memory: '4Gi'
    minReplicas: 1
    maxReplicas: 10
    scaledQueues: usesServiceBus ? ['functionapp-tasks', 'dag-worker-tasks'] : []
    tasksPerReplica: 20
    busNamespace: usesServiceBus ? bus.name : ''
    scalerIdentityId: usesServiceBus ? scalerIdentity.id : ''
  }
  dependsOn: [platformPulls]
}

module workerRaster 'app.bicep' = {
  name: '${prefix}-worker-raster'
  params: {
    name: '${prefix}-worker-raster'
    location: location
    environmentId: environment.id
    registryServer: registry.properties.loginServer
    image: 'dagmaster-worker:${imageVersion}'
    identityId: platformIdentity.id
    settings: concat(platform, [
      { name: 'WORKER_TYPE', value: 'raster' }
      { name: 'WORKER_QUEUE', value: 'container-tasks' }
      { name: 'WORKER_PROCESSES', value: '2' }
      { name: 'WORKER_MEMORY_MB', value: '3072' }
    ])
    port: 8002
    hasIngress: false
    cpu: '4'
    memory: '8Gi'
    minReplicas: 1
    maxReplicas: 40
    scaledQueues: usesServiceBus ? ['container-tasks'] : []
    tasksPerReplica: 2
    busNamespace: usesServiceBus ? bus.name : ''
    scalerIdentityId: usesServiceBus ? scalerIdentity.id : ''
  }
  dependsOn: [platformPulls]
}

module serving 'app.bicep' = {
  name: '${prefix}-serving'
  params: {
    name: '${prefix}-serving'
    location: location
    environmentId: environment.id
    registryServer: registry.properties.loginServer
    image: 'dagmaster-serving:${imageVersion}'
    identityId: servingIdentity.id
    settings: concat(common, oidc, zonesInAzure, [
      { name: 'DATABASE_URL', value: servingServer }
      { name: 'AZURE_CLIENT_ID', value: servingIdentity.properties.clientId }
    ])
    port: 8003
    cpu: '2'
    memory: '4Gi'
    minReplicas: 2
    maxReplicas: 20
  }
  dependsOn: [servingPulls]
}

module gateway 'app.bicep' = {
  name: '${prefix}-gateway'
  params: {
    name: '${prefix}-gateway'
    location: location
    environmentId: environment.id
    registryServer: registry.properties.loginServer
    image: 'dagmaster-gateway:${imageVersion}'
    identityId: gatewayIdentity.id
    settings: concat(common, oidc, [
      { name: 'GATEWAY_DATABASE_URL', value: gatewayServer }
      { name: 'AZURE_CLIENT_ID', value: gatewayIdentity.properties.clientId }
      { name: 'ORCHESTRATOR_URLS', value: 'https://${prefix}-orchestrator.${domain}' }
    ])
    port: 8001
    isExternal: true
    cpu: '0.5'
    memory: '1Gi'
    minReplicas: 2
    maxReplicas: 10
  }
  dependsOn: [gatewayPulls]
}

output databaseHost string = host
output storageAccount string = storage.name
output platformIdentityName string = platformIdentity.name
output adminIdentityName string = adminIdentity.name
