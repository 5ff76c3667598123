package checktest

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// RuntimeHost is a host whose runtime serves a socket: see mutatetest.StartContainerd.
func RuntimeHost(t *testing.T, socket string) *host.Host {
	t.Helper()
	runtime, closer, err := cri.NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	h := &host.Host{NodeName: "node-1", Clock: host.Now, Plugins: kubelet.NewPlugins(t.TempDir()), Runtime: runtime}
	h.Paths.CRISocket = socket
	return h
}
