package cniconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// TestCNIConfigAgainstContainerd: the check agrees with a real containerd about the same directory.
func TestCNIConfigAgainstContainerd(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	h := checktest.RuntimeHost(t, c.Socket)
	h.Paths.CNIConfDir, h.Paths.CNIBinDirs = c.ConfDir, []string{c.BinDir}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(c.Dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	const good = `{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}`
	check := New()
	file := "cni-config/" + filepath.Join(h.Paths.CNIConfDir, "10-lo.conflist") + "="
	checktest.AwaitFindings(t, check, h, []string{"cni-config/" + h.Paths.CNIConfDir + "=CNIConfigMissing"})
	write("bin/loopback", "\x7fELF", 0o755)
	write("net.d/10-lo.conflist", good, 0o600)
	checktest.AwaitFindings(t, check, h, nil)
	awaitNetwork(t, h, true)
	write("net.d/10-lo.conflist", good[:20], 0o600)
	awaitNetwork(t, h, false) // containerd has given up its network
	checktest.AwaitFindings(t, check, h, []string{file + "CNIConfigInvalid"})
	write("net.d/10-lo.conflist", good, 0o600)
	awaitNetwork(t, h, true)
	checktest.AwaitFindings(t, check, h, nil)
	if err := os.Remove(filepath.Join(c.Dir, "bin/loopback")); err != nil {
		t.Fatal(err)
	}
	checktest.AwaitFindings(t, check, h, []string{file + "CNIPluginMissing warning"}) // the runtime does not notice
	write("bin/loopback", "", 0o755)
	checktest.AwaitFindings(t, check, h, []string{file + "CNIPluginNotExecutable warning"})
}

// A plugin file that others may write is no evidence, as the file of its network would be: the check cannot tell.
func TestCNIPluginFileOfOthers(t *testing.T) {
	h := &host.Host{Paths: discover.DefaultPaths(), Files: host.Files{Root: t.TempDir()}}
	checktest.WriteHostFile(t, h.Files, "/etc/cni/net.d/10-a.conflist", `{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"loopback"}]}`)
	plugin := "/etc/cni/net.d/a/10-b.conf"
	checktest.WriteHostFile(t, h.Files, plugin, `{"type":"no-such-plugin"}`)
	checktest.WriteHostFile(t, h.Files, "/opt/cni/bin/loopback", "")
	if err := os.Chmod(filepath.Join(h.Files.Root, plugin), 0o666); err != nil {
		t.Fatal(err)
	}
	found, err := New().Run(t.Context(), h)
	if len(found) != 0 || err == nil || !strings.Contains(err.Error(), plugin) {
		t.Errorf("%v, %v", found, err)
	}
}

func awaitNetwork(t *testing.T, h *host.Host, want bool) {
	t.Helper()
	for range 2400 {
		if ready, known := networkReady(t.Context(), h); known && ready == want {
			return
		}
		checktest.Pause(t)
	}
	t.Fatalf("the runtime's NetworkReady does not become %t", want)
}

func TestCNIConfigNotApplicable(t *testing.T) {
	h := &host.Host{Files: host.Files{Root: t.TempDir()}, Paths: discover.DefaultPaths()}
	if _, err := New().Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("a machine without Kubernetes: %v, want not applicable", err)
	}
	h.Paths.CRISocket = "/run/crio/crio.sock"
	checktest.WriteHostFile(t, h.Files, "/etc/cni/net.d/1.conf", "malformed")
	checktest.WriteHostFile(t, h.Files, "/etc/cni/net.d/2.conf", `{"type": "bridge"}`)
	if found, err := New().Run(t.Context(), h); !checktest.IsNotApplicable(err) {
		t.Errorf("another program's network, without Kubernetes: %v, %v, want not applicable", found, err)
	}
	h.NodeName = "node"
	found, err := New().Run(t.Context(), h)
	if err != nil || len(found) != 1 || found[0].Reason != "CNIPluginMissing" {
		t.Errorf("CRI-O passes over what is malformed: %v, %v", found, err)
	}
}

func FuzzParseCNIConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback","ipam":{"type":"x"}}]}`), true)
	f.Add([]byte(`{"type":"bridge"}`), false)
	f.Fuzz(func(t *testing.T, data []byte, list bool) {
		if config, err := parseCNIConfig(data, list); (err == nil) != (config != nil) {
			t.Errorf("%v, %v", config, err)
		}
	})
}
