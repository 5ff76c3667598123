//go:build tools

// Package etcd pins the etcd that the answer key runs: unlike Debian's, it serves streamed lists.
package etcd

import _ "go.etcd.io/etcd/server/v3"
