package mutate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/test/need"
)

func attachment(t *testing.T, n *mutatetest.Node, network, id string) mutate.Attachment {
	t.Helper()
	file := filepath.Join(n.Host.Paths.CNICacheDir, "results", network+"-"+id+"-eth0")
	stat, err := n.Host.Files.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return mutate.Attachment{File: file, Inode: stat.Inode, Size: int64(stat.Size), ContainerID: id}
}

// rules counts the rules of the packet filter that name a sandbox.
func rules(t *testing.T, id string) int {
	t.Helper()
	out, err := exec.Command("/usr/sbin/iptables", "-w", "-t", "nat", "-S").Output()
	need.Kernel(t, "iptables", err)
	return strings.Count(string(out), id)
}

func leases(t *testing.T, n *mutatetest.Node, network string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.Host.Paths.CNINetworksDir, network))
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "10.") {
			held = append(held, e.Name())
		}
	}
	return held
}

func TestDelAttachment(t *testing.T) {
	n, uid := mutatetest.New(t), mutatetest.UID(t)
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("netns %v", there), func(t *testing.T) {
			netns := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
			made := n.Attach(uid, netns.Path)
			a, bridge := attachment(t, n, made.Network, made.ContainerID), made.Network
			if rules(t, a.ContainerID) == 0 || len(leases(t, n, bridge)) != 1 {
				t.Fatal("the attachment left no rules or no lease: this test shows nothing")
			}
			if !there {
				if err := n.Mutator.RemoveNetns(t.Context(), netns); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := n.Mutator.DelAttachment(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			}
			if got := rules(t, a.ContainerID); got > 0 {
				t.Errorf("%d rules are left", got)
			}
			if got := leases(t, n, bridge); len(got) > 0 {
				t.Errorf("leases %v are left", got)
			}
			if _, err := os.Lstat(a.File); !os.IsNotExist(err) {
				t.Error("the cache file is left")
			}
		})
	}
}

// If the network namespace is gone, host-device returns from DEL before it asks IPAM to free the address.
func TestDelAttachmentFreesLease(t *testing.T) {
	n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
	network := "net" + mutatetest.Hex(t, 6)
	conf := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"%s","plugins":[{"type":"host-device","device":"nosuch0",
		"ipam":{"type":"host-local","dataDir":"%s","subnet":"10.204.0.0/28"}}]}`, network, n.Host.Paths.CNINetworksDir)
	cacheFile(t, n, network, id, conf)
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, network, "10.204.0.5"), id+"\r\neth0")
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, network, "10.204.0.6"), mutatetest.Hex(t, 64)+"\r\neth0")
	if err := n.Mutator.DelAttachment(t.Context(), attachment(t, n, network, id)); err != nil {
		t.Fatal(err)
	}
	if got := leases(t, n, network); len(got) != 1 || got[0] != "10.204.0.6" {
		t.Errorf("leases %v, want the other one only", got)
	}
}

func cacheFile(t *testing.T, n *mutatetest.Node, network, id, conf string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "config": []byte(conf), "ifName": "eth0", "networkName": network,
		"netns": filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Write(filepath.Join(n.Host.Paths.CNICacheDir, "results", network+"-"+id+"-eth0"), string(data))
}

// The error of a plugin is returned, and the attachment stays known. A plugin that never ends is abandoned.
func TestDelAttachmentPluginFails(t *testing.T) {
	n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
	n.Program(filepath.Join(n.Dir, "bin/broken"),
		"#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"code\":100,\"msg\":\"the agent is down\"}'\nexit 1\n")
	n.Host.Paths.CNIBinDirs = []string{filepath.Join(n.Dir, "bin")}
	cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"broken"}]}`)
	a := attachment(t, n, "net", id)
	if err := n.Mutator.DelAttachment(t.Context(), a); err == nil ||
		!strings.Contains(err.Error(), "the agent is down") {
		t.Errorf("got %v, want the plugin's words", err)
	}
	if _, err := os.Lstat(a.File); err != nil {
		t.Error(err)
	}
}

func TestDelAttachmentRefuses(t *testing.T) {
	n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
	mark := filepath.Join(n.Dir, "mark")
	plugin := n.Program(filepath.Join(n.Dir, "evil"), "#!/bin/sh\ntouch "+mark+"\n")
	cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"../../..`+plugin+`"}]}`)
	good := attachment(t, n, "net", id)
	bigger, other, replaced := good, good, good
	bigger.Size++
	replaced.Inode++
	other.ContainerID = mutatetest.Hex(t, 64)
	outside := good
	outside.File = n.Write(filepath.Join(n.Dir, "net-"+id+"-eth0"), "{}")
	for name, try := range map[string]mutate.Attachment{
		"a plugin outside of the directories": good, "was written again": bigger, "another file": replaced,
		"another container": other, "another directory": outside,
	} {
		if err := n.Mutator.DelAttachment(t.Context(), try); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, try := range []mutate.Attachment{bigger, replaced} {
		if err := n.Mutator.DelAttachment(t.Context(), try); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("was written again: %v", err)
		}
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the plugin ran")
	}
}

// recordingPlugin is a plugin that writes down the network namespace that it is given.
func recordingPlugin(t *testing.T, n *mutatetest.Node, name string) (seen func() string) {
	t.Helper()
	file := filepath.Join(n.Dir, "seen-"+name)
	n.Program(filepath.Join(n.Dir, "bin", name), "#!/bin/sh\necho \"netns=$CNI_NETNS\" >> "+file+
		"\necho '{\"cniVersion\":\"0.4.0\"}'\n")
	n.Host.Paths.CNIBinDirs = []string{filepath.Join(n.Dir, "bin")}
	return func() string {
		data, _ := os.ReadFile(file)
		return string(data)
	}
}

// A plugin enters the namespace that it is given, so that must be a real one in a directory of the runtime.
func TestDelAttachmentNetns(t *testing.T) {
	for name, test := range map[string]struct {
		make func(n *mutatetest.Node) string
		want string // namespace that the plugin gets; empty: it is not run
	}{
		"pinned": {func(n *mutatetest.Node) string {
			return n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t))).Path
		}, "netns=%\n"},
		"gone": {func(n *mutatetest.Node) string {
			return filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t))
		}, "netns=\n"},
		"a plain file": {func(n *mutatetest.Node) string {
			return n.Write(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)), "")
		}, "netns=\n"},
		"elsewhere": {func(n *mutatetest.Node) string {
			return n.MountNetns(filepath.Join(n.Dir, "elsewhere", "cni-"+mutatetest.UID(t))).Path
		}, ""},
		"of a process": {func(*mutatetest.Node) string { return "/proc/self/ns/net" }, ""},
		"by a detour": {func(n *mutatetest.Node) string {
			return filepath.Join(n.Dir, "netns") + "/../netns/x"
		}, ""},
		"a link outside": {func(n *mutatetest.Node) string { return link(t, n) }, "netns=\n"},
	} {
		n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
		seen := recordingPlugin(t, n, "recorder")
		netns := test.make(n)
		data, err := json.Marshal(map[string]any{
			"kind": "cniCacheV1", "containerId": id,
			"config": []byte(`{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"recorder"}]}`),
			"ifName": "eth0", "networkName": "net", "netns": netns,
		})
		if err != nil {
			t.Fatal(err)
		}
		n.Write(filepath.Join(n.Host.Paths.CNICacheDir, "results", "net-"+id+"-eth0"), string(data))
		err = n.Mutator.DelAttachment(t.Context(), attachment(t, n, "net", id))
		if want := strings.ReplaceAll(test.want, "%", netns); seen() != want || (err == nil) != (want != "") {
			t.Errorf("%s: the plugin saw %q, want %q; %v", name, seen(), want, err)
		}
	}
}

// link makes a symbolic link in the runtime's directory to a namespace elsewhere.
func link(t *testing.T, n *mutatetest.Node) string {
	t.Helper()
	name := filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t))
	if err := os.Symlink("/proc/self/ns/net", name); err != nil {
		t.Fatal(err)
	}
	return name
}

// The address is freed after all plugins have finished. If that fails, both the record and the address are still there,
// and the release can be tried again.
func TestDelAttachmentFreesLeaseLast(t *testing.T) {
	n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
	seen := recordingPlugin(t, n, "bridge")
	n.Program(filepath.Join(n.Dir, "bin/host-local"),
		"#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"code\":5,\"msg\":\"no lock\"}'\nexit 1\n")
	conf := `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`
	cacheFile(t, n, "net", id, conf)
	lease := n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, "net", "10.204.0.5"), id+"\r\neth0")
	for i := range 2 {
		a := attachment(t, n, "net", id)
		before, err := os.ReadFile(a.File)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Mutator.DelAttachment(t.Context(), a); err == nil || !strings.Contains(err.Error(), "no lock") {
			t.Errorf("got %v, want host-local's words", err)
		}
		if after, err := os.ReadFile(a.File); err != nil || string(after) != string(before) ||
			seen() != strings.Repeat("netns=\n", i+1) {
			t.Errorf("the cache file: %q, %v; the plugin saw %q", after, err, seen())
		}
	}
	if held, err := n.Mutator.LeasesHeld(filepath.Dir(lease), id, "eth0"); err != nil || len(held) != 1 {
		t.Errorf("held %v, %v", held, err)
	}
}

// An address of another interface of the same sandbox does not belong to this attachment.
func TestLeasesHeld(t *testing.T) {
	n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
	dir := filepath.Join(n.Dir, "networks/net")
	for name, content := range map[string]string{
		"10.204.0.2": id + "\r\neth0", "10.204.0.3": id + "\r\nnet1", "10.204.0.4": mutatetest.Hex(t, 64) + "\r\neth0",
		"10.204.0.5": id, "fd00__7": id + "\r\neth0", "lock": "", "last_reserved_ip.0": id,
	} {
		n.Write(filepath.Join(dir, name), content)
	}
	held, err := n.Mutator.LeasesHeld(dir, id, "eth0")
	if want := []string{"10.204.0.2", "10.204.0.5", "fd00__7"}; err != nil ||
		!slices.Equal(slices.Sorted(slices.Values(held)), want) {
		t.Errorf("held %v, %v; want %v", held, err, want)
	}
	if held, err := n.Mutator.LeasesHeld(filepath.Join(n.Dir, "none"), id, "eth0"); err != nil || len(held) != 0 {
		t.Errorf("no directory: %v, %v", held, err)
	}
	for _, try := range [][2]string{{dir, ""}, {"", id}, {"networks", id}} {
		if _, err := n.Mutator.LeasesHeld(try[0], try[1], "eth0"); err == nil {
			t.Errorf("%q: no error", try)
		}
	}
}

func FuzzParseAttachment(f *testing.F) {
	id := strings.Repeat("a", 64)
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"`+id+
		`","config":"eyJuYW1lIjoibiJ9","ifName":"eth0","networkName":"n"}`), "n-"+id+"-eth0")
	f.Add([]byte(`{`), "")
	f.Fuzz(func(_ *testing.T, data []byte, name string) { _ = mutate.ParseAttachment(data, name, id) })
}
