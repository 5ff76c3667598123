package checktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/test/need"
)

// containerd is a real containerd in its own folder, with its CRI plugin.
type containerd struct {
	Dir    string
	Socket string
	Cmd    *exec.Cmd
}

// StartContainerd starts a containerd that ends with the test.
func StartContainerd(t *testing.T) *containerd {
	t.Helper()
	need.Root(t, "runs containerd")
	need.Program(t, "containerd")
	c := &containerd{Dir: t.TempDir()}
	c.Socket = filepath.Join(c.Dir, "c.sock")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [%q, %q, %q, %q]\n[grpc]\naddress = "+
		"%q\n[plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\n"+
		"stream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n"+
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"+
		"[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = %q\nbin_dir = \"/usr/lib/cni\"\n"+
		"[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q\n"+
		"[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = true\n",
		filepath.Join(c.Dir, "root"), filepath.Join(c.Dir, "state"),
		"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
		"io.containerd.snapshotter.v1.devmapper",
		c.Socket, filepath.Join(c.Dir, "net.d"), filepath.Join(c.Dir, "opt"))
	if err := os.WriteFile(filepath.Join(c.Dir, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Start(t)
	return c
}

// Start starts it, also after Kill.
func (c *containerd) Start(t *testing.T) {
	t.Helper()
	c.Cmd = exec.CommandContext(t.Context(), "containerd", "--config", filepath.Join(c.Dir, "config.toml"))
	log, err := os.OpenFile(filepath.Join(c.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.Cmd.Stdout, c.Cmd.Stderr = log, log
	if err := c.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
}

// Kill kills it.
func (c *containerd) Kill() {
	_ = c.Cmd.Process.Kill()
	_ = c.Cmd.Wait()
}

// RuntimeHost is a host whose runtime is that containerd.
func (c *containerd) RuntimeHost(t *testing.T) *host.Host {
	t.Helper()
	runtime, closer, err := cri.NewRuntime(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	h := &host.Host{NodeName: "node-1", Clock: host.Now, Plugins: kubelet.NewPlugins(c.Dir), Runtime: runtime}
	h.Paths.CRISocket = c.Socket
	return h
}
