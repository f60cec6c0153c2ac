// The Entra administrator of the database server.
//
// UNTESTED: neither compiled nor deployed. It is a module because the name of the resource is the id of an identity, and
// names must be known before a deployment starts; only parameters of a module may be the results of earlier resources.

param serverName string
param principalId string
param principalName string

resource server 'Microsoft.DBforPostgreSQL/flexibleServers@2024-08-01' existing = {
  name: serverName
}

resource administrator 'Microsoft.DBforPostgreSQL/flexibleServers/administrators@2024-08-01' = {
  parent: server
  name: principalId
  properties: { principalType: 'ServicePrincipal', principalName: principalName, tenantId: tenant().tenantId }
}
