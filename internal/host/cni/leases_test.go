package cni_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cni"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// Only files named like an address are leases, a bad one hides no other, and reading never waits for a pipe.
func TestLeases(t *testing.T) {
	root := t.TempDir()
	h := &host.Host{Files: host.Files{Root: root}}
	if found, err := cni.Leases(h, "/pods"); found != nil || err != nil {
		t.Fatalf("no directory: %v, %v", found, err)
	}
	if err := os.MkdirAll(filepath.Join(root, "pods/10.0.0.9"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"10.0.0.1": hosttest.ContainerID + "\r\neth0", "10.0.0.2": hosttest.ContainerID, "fd00::1": "other\neth1",
		"10.0.0.3": "", "10.0.0.4": "a b", "10.0.0.5": strings.Repeat("x", 2000), "lock": "", "last_reserved_ip.0": "10.0.0.5",
	} {
		if err := os.WriteFile(filepath.Join(root, "pods", name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "pods/10.0.0.6"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := cni.Leases(h, "/pods")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, l := range found {
		got[l.Address.String()] = l.ContainerID + " " + l.IfName
		if l.Malformed != "" {
			got[l.Address.String()] = "malformed"
		}
	}
	want := map[string]string{"10.0.0.1": hosttest.ContainerID + " eth0", "10.0.0.2": hosttest.ContainerID + " ",
		"fd00::1": "other eth1", "10.0.0.3": "malformed", "10.0.0.4": "malformed", "10.0.0.5": "malformed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The runtime uses the first configuration in its directory, and Multus those named in its own.
func TestConfiguredNetworks(t *testing.T) {
	root := t.TempDir()
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{CNIConfDir: "/"}}
	for _, step := range []struct{ file, data, want string }{
		{"README", "", ""}, {"87-podman.conflist", `{"name":"podman"}`, "podman"},
		{"10-pods.conf", `{"name":"pods","type":"bridge"}`, "pods"},
		{"05-multus.conf", `{"name":"multus-cni-network","type":"multus","delegates":[{"type":"flannel",
			"name":"flannel.1"},{"name":"storage","plugins":[]}]}`, "multus-cni-network flannel.1 storage"},
		{"04-multus.conf", `{"name":"node-cni-network","type":"multus","clusterNetwork":"/10-pods.conf",
			"defaultNetworks":["sidecar"]}`, "node-cni-network sidecar pods"},
		{"03-multus.conflist", `{"name":"m","plugins":[{"type":"multus","clusterNetwork":"pods"},{"type":"tuning"}]}`,
			"m pods"},
		{"02-multus.conf", `{"name":"m","type":"multus","clusterNetwork":"/gone.conf"}`, "error"},
		{"00-cut.json", `{"name":`, "error"},
	} {
		if err := os.WriteFile(filepath.Join(root, step.file), []byte(step.data), 0o600); err != nil {
			t.Fatal(err)
		}
		names, err := cni.ConfiguredNetworks(h)
		got := strings.Join(names, " ")
		if err != nil {
			got = "error"
		}
		if got != step.want {
			t.Errorf("with %s: %q, %v; want %q", step.file, got, err, step.want)
		}
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add(hosttest.ContainerID + "\r\neth0")
	f.Add("\r\n\x00")
	f.Fuzz(func(t *testing.T, content string) {
		container, ifName, err := cni.ParseLease(content)
		if (err == nil) == (container == "") || err != nil && ifName != "" ||
			strings.ContainsAny(container+ifName, "\x00\r\n ") {
			t.Errorf("%q: %q, %q, %v", content, container, ifName, err)
		}
	})
}
