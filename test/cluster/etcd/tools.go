//go:build tools

// Package etcd pins the version of etcd that stores the test cluster's objects. cluster.sh builds and runs it.
package etcd

import _ "go.etcd.io/etcd/server/v3"
