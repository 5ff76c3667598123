package hand_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/hand"
	"github.com/nodeagent/nodeagent/internal/hand/handtest"
)

func attachment(t *testing.T, n *handtest.Node, network, id string) hand.Attachment {
	t.Helper()
	file := filepath.Join(n.Host.Paths.CNICacheDir, "results", network+"-"+id+"-eth0")
	stat, err := n.Host.Files.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return hand.Attachment{File: file, Inode: stat.Inode, Size: int64(stat.Size), ContainerID: id}
}

// rules counts the rules of the packet filter that name a sandbox.
func rules(t *testing.T, id string) int {
	t.Helper()
	out, err := exec.Command("/usr/sbin/iptables", "-w", "-t", "nat", "-S").Output()
	if err != nil {
		t.Skipf("needs iptables: %v", err)
	}
	return strings.Count(string(out), id)
}

func leases(t *testing.T, n *handtest.Node, network string) []string {
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
	n, uid := handtest.New(t), handtest.UID(t)
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("netns %v", there), func(t *testing.T) {
			netns := n.Pin(filepath.Join(n.Dir, "netns", "cni-"+handtest.UID(t)))
			made := n.Attach(uid, netns.Path)
			a, bridge := attachment(t, n, made.Network, made.ContainerID), made.Network
			if rules(t, a.ContainerID) == 0 || len(leases(t, n, bridge)) != 1 {
				t.Fatal("the attachment left no rules or no lease: this test shows nothing")
			}
			if !there {
				if err := n.Hand.RemoveNetns(t.Context(), netns); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := n.Hand.DelAttachment(t.Context(), a); err != nil {
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

// host-device returns from DEL before it asks for the address to be freed when the network namespace is gone.
func TestDelAttachmentFreesLease(t *testing.T) {
	n, id := handtest.New(t), handtest.Hex(t, 64)
	network := "net" + handtest.Hex(t, 6)
	conf := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"%s","plugins":[{"type":"host-device","device":"nosuch0",
		"ipam":{"type":"host-local","dataDir":"%s","subnet":"10.204.0.0/28"}}]}`, network, n.Host.Paths.CNINetworksDir)
	cacheFile(t, n, network, id, conf)
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, network, "10.204.0.5"), id+"\r\neth0")
	n.Write(filepath.Join(n.Host.Paths.CNINetworksDir, network, "10.204.0.6"), handtest.Hex(t, 64)+"\r\neth0")
	if err := n.Hand.DelAttachment(t.Context(), attachment(t, n, network, id)); err != nil {
		t.Fatal(err)
	}
	if got := leases(t, n, network); len(got) != 1 || got[0] != "10.204.0.6" {
		t.Errorf("leases %v, want the other one only", got)
	}
}

func cacheFile(t *testing.T, n *handtest.Node, network, id, conf string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": id, "config": []byte(conf), "ifName": "eth0", "networkName": network,
		"netns": filepath.Join(n.Dir, "netns", "cni-"+handtest.UID(t)),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Write(filepath.Join(n.Host.Paths.CNICacheDir, "results", network+"-"+id+"-eth0"), string(data))
}

// A plugin that refuses says why, and the attachment stays known. One that never ends is given up.
func TestDelAttachmentPluginFails(t *testing.T) {
	n, id := handtest.New(t), handtest.Hex(t, 64)
	plugin := n.Write(filepath.Join(n.Dir, "bin/broken"),
		"#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"code\":100,\"msg\":\"the agent is down\"}'\nexit 1\n")
	if err := os.Chmod(plugin, 0o755); err != nil {
		t.Fatal(err)
	}
	n.Host.Paths.CNIBinDirs = []string{filepath.Join(n.Dir, "bin")}
	cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"broken"}]}`)
	a := attachment(t, n, "net", id)
	if err := n.Hand.DelAttachment(t.Context(), a); err == nil || !strings.Contains(err.Error(), "the agent is down") {
		t.Errorf("got %v, want the plugin's words", err)
	}
	if _, err := os.Lstat(a.File); err != nil {
		t.Error(err)
	}
}

func TestDelAttachmentRefuses(t *testing.T) {
	n, id := handtest.New(t), handtest.Hex(t, 64)
	mark := filepath.Join(n.Dir, "mark")
	plugin := n.Write(filepath.Join(n.Dir, "evil"), "#!/bin/sh\ntouch "+mark+"\n")
	if err := os.Chmod(plugin, 0o755); err != nil {
		t.Fatal(err)
	}
	cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"../../..`+plugin+`"}]}`)
	good := attachment(t, n, "net", id)
	bigger, other := good, good
	bigger.Size++
	other.ContainerID = handtest.Hex(t, 64)
	outside := good
	outside.File = n.Write(filepath.Join(n.Dir, "net-"+id+"-eth0"), "{}")
	for name, try := range map[string]hand.Attachment{
		"a plugin outside of the directories": good, "was written again": bigger, "another container": other, "another directory": outside,
	} {
		if err := n.Hand.DelAttachment(t.Context(), try); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := n.Hand.DelAttachment(t.Context(), bigger); !errors.Is(err, hand.ErrChanged) {
		t.Errorf("was written again: %v", err)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("the plugin ran")
	}
}

func FuzzParseAttachment(f *testing.F) {
	id := strings.Repeat("a", 64)
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"`+id+`","config":"eyJuYW1lIjoibiJ9","ifName":"eth0","networkName":"n"}`), "n-"+id+"-eth0")
	f.Add([]byte(`{`), "")
	f.Fuzz(func(_ *testing.T, data []byte, name string) { _ = hand.ParseAttachment(data, name, id) })
}
