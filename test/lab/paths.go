package lab

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DefaultDir is the default folder of a lab.
const DefaultDir = "/var/lib/nodeagent-lab"

// folder returns dir, or the folder of the lab of this namespace (see test/need/apart), or DefaultDir.
func folder(dir string) string { return cmp.Or(dir, os.Getenv("NODEAGENT_LAB"), DefaultDir) }

// Names of a lab's objects outside its folder. They are fixed, since one network namespace has only one lab at a time.
const (
	// Network is the name of the CNI network, and the prefix of every file in CNICacheDir/results.
	Network = "nodeagent-lab"
	// PodBridge is the bridge of the pods.
	PodBridge = "nalab0"
	// NodeLink has NodeIP. It is a bridge without ports: every kernel that can run the pod network has bridges, but
	// some have no dummy links.
	NodeLink = "nalab-node"
	// NodeIP is the node's InternalIP (TEST-NET-2): kubelet rejects a loopback address. It has no listener.
	NodeIP = "198.51.100.10"
	// PodCIDR has room for about 1000 pods.
	PodCIDR = "10.244.76.0/22"

	serviceCIDR  = "10.244.80.0/24"
	firstService = "10.244.80.1"
	maxDirLen    = 60
)

// cgroupRoot is the parent of all pods of the lab in dir, in every hierarchy: cgroups are of no namespace.
func cgroupRoot(dir string) string {
	return "/nodeagent-lab" + strings.ReplaceAll(strings.TrimPrefix(dir, DefaultDir), "/", "-")
}

// Paths are the locations of a lab's objects, for agents and tests that use it.
type Paths struct {
	KubeletRoot       string // kubelet's --root-dir, "/var/lib/kubelet" elsewhere
	KubeletConfig     string // KubeletConfiguration file
	PodLogsDir        string // "/var/log/pods" elsewhere
	StaticPodDir      string // manifests of static pods
	CRISocket         string // path, without "unix://"
	ContainerdSocket  string // the same socket: containerd serves both
	ContainerdState   string // "/run/containerd" elsewhere
	ContainerdRoot    string // "/var/lib/containerd" elsewhere
	RuncRoot          string // runc's state, namespaces are folders below it
	CgroupRoot        string // parent of kubepods in every hierarchy, relative to its mount point
	CNIConfDir        string // "/etc/cni/net.d" elsewhere
	CNIBinDir         string // plugins
	CNICacheDir       string // libcni's cache; results are in its folder "results". Shared with the host
	CNINetworksDir    string // host-local's dataDir; leases are in its folder Network
	NetnsDir          string // "/run/netns" elsewhere
	AdminKubeconfig   string // system:masters
	KubeletKubeconfig string // system:node:NAME
	CAFile            string // signs every certificate of the lab
	LogDir            string // one NAME.log for each component
	BinDir            string // Kubernetes binaries
	Kubectl           string
	ContainerdDir     string // containerd, its shim and ctr
	CRIODir           string // CRI-O and its helpers; empty if containerd is the runtime
	Ctr               string
	RuncDir           string // runc of test/runc; empty if containers run with Debian's
}

// debianDir is the folder of Debian's containerd programs.
const debianDir = "/usr/bin"

func newPaths(dir string, s *state) Paths {
	containerd := cmp.Or(s.ContainerdDir, debianDir)
	cgroups := cgroupRoot(dir)
	if s.systemd() { // the usual place if systemd creates them
		cgroups = "/"
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	p := Paths{
		KubeletRoot:       at("kubelet"),
		KubeletConfig:     at("config/kubelet.yaml"),
		PodLogsDir:        at("pod-logs"),
		StaticPodDir:      at("manifests"),
		CRISocket:         at("run/containerd.sock"),
		ContainerdSocket:  at("run/containerd.sock"),
		ContainerdState:   at("run/containerd"),
		ContainerdRoot:    at("containerd"),
		RuncRoot:          at("run/runc"),
		CgroupRoot:        cgroups,
		CNIConfDir:        at("cni/conf"),
		CNIBinDir:         "/usr/lib/cni",
		CNICacheDir:       "/var/lib/cni",
		CNINetworksDir:    at("cni/networks"),
		NetnsDir:          at("run/containerd/io.containerd.grpc.v1.cri/netns"),
		AdminKubeconfig:   at("admin.kubeconfig"),
		KubeletKubeconfig: at("config/kubelet.kubeconfig"),
		CAFile:            at("pki/ca.crt"),
		LogDir:            at("log"),
		BinDir:            s.BinDir,
		Kubectl:           filepath.Join(s.BinDir, "kubectl"),
		ContainerdDir:     containerd,
		Ctr:               filepath.Join(containerd, "ctr"),
		CRIODir:           s.CRIODir,
		RuncDir:           s.RuncDir,
	}
	if s.CRIODir != "" {
		p.CRISocket, p.ContainerdSocket, p.NetnsDir = at("run/crio/crio.sock"), "", at("run/netns")
	}
	return p
}

// checkDir rejects folders in which the lab could not work, or could not be removed without harm.
func checkDir(dir string) error {
	switch {
	case !filepath.IsAbs(dir) || filepath.Clean(dir) != dir:
		return fmt.Errorf("lab folder %q: want a clean absolute path", dir)
	case strings.Count(dir, "/") < 2:
		return fmt.Errorf("lab folder %q: must not be at the top of the filesystem, it is removed whole", dir)
	case len(dir) > maxDirLen:
		return fmt.Errorf("lab folder %q: longer than %d bytes, Unix sockets below it would not fit into 108", dir,
			maxDirLen)
	case strings.ContainsAny(dir, " \t\n\\\"'"):
		return fmt.Errorf("lab folder %q: must not contain spaces, quotes or backslashes", dir)
	}
	return nil
}

// within reports whether path is dir or below it, by whole path components.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
