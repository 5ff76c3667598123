package mutatetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/test/need"
)

// MountNetns creates a network namespace and mounts it at name, as a runtime does.
func (n *Node) MountNetns(name string) mutate.Netns {
	n.t.Helper()
	n.Write(name, "")
	// The namespace of another process, because a thread of ours would count as a process in it.
	owner := exec.Command("/usr/bin/unshare", "-n", "/bin/sh", "-c", "echo ready; exec sleep 60")
	out, err := owner.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		n.t.Fatal(err)
	}
	defer func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", owner.Process.Pid), name, "", unix.MS_BIND, ""); err != nil {
		n.t.Fatal(err)
	}
	return mutate.Netns{Path: name, Inode: FileID(n.t, name).Inode}
}

// Attached is a pod's attachment to its own network.
type Attached struct {
	Network     string // also the name of its bridge
	ContainerID string
	File        string
}

// subnets counts the networks of this process: each has its own addresses.
var subnets atomic.Uint32

// Attach creates a real attachment like a runtime: bridge with host-local, and portmap, which also needs its capability
// for DEL.
func (n *Node) Attach(uid, netns string) Attached {
	n.t.Helper()
	need.Program(n.t, "/usr/lib/cni/portmap")
	a := Attached{Network: "nab" + Hex(n.t, 8), ContainerID: Hex(n.t, 64)}
	n.t.Cleanup(func() { _ = exec.Command("/sbin/ip", "link", "del", a.Network).Run() })
	third := (os.Getpid() + int(subnets.Add(1))) % 256
	conf := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"%[1]s","plugins":[
		{"type":"bridge","bridge":"%[1]s","isGateway":true,"ipam":{"type":"host-local","dataDir":"%[2]s","subnet":"10.203.%[3]d.0/28"}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`, a.Network, n.Host.Paths.CNINetworksDir, third)
	n.Add(&a, conf, uid, netns)
	return a
}

// Add makes an attachment to the network of a configuration.
func (n *Node) Add(a *Attached, conf, uid, netns string) {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		n.t.Fatal(err)
	}
	plugins := libcni.NewCNIConfigWithCacheDir(n.Host.Paths.CNIBinDirs, n.Host.Paths.CNICacheDir, nil)
	_, err = plugins.AddNetworkList(n.t.Context(), list, &libcni.RuntimeConf{
		ContainerID: a.ContainerID, NetNS: netns, IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p"}, {"K8S_POD_UID", uid},
		},
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 38080, "containerPort": 80,
			"protocol": "tcp"}}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	a.File = filepath.Join(n.Host.Paths.CNICacheDir, "results", a.Network+"-"+a.ContainerID+"-eth0")
}
