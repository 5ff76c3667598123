// Package distro has the table of the distributions of Kubernetes: how each names its programs and units, where it
// keeps its files, and what it leaves on the disk. It is data, and reads nothing. No other package knows a distribution
// by name (internal/archtest enforces that).
package distro

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Distribution is one way to install Kubernetes on a node. In paths, {data} stands for the data directory, which the
// distribution's own flag can move; {common} is the same for a snap's directory of all its revisions.
type Distribution struct {
	ID   string // "k3s"
	Name string // "K3s"

	// Programs are the names that the kernel keeps (15 bytes) of programs that a kubelet is part of. Where there are
	// none, kubelet is a process of its own.
	Programs []string
	// Units of systemd that run kubelet, without ".service"; patterns of path.Match. The first stands for the others
	// where the node does not say which it has.
	Units []string
	// RuntimeUnits run the container runtime. Where there are none, kubelet's unit runs it.
	RuntimeUnits []string
	// Commands replace systemctl and journalctl where no unit of systemd runs kubelet.
	Commands *Commands

	// Launcher is the name of the program file that the unit starts; empty: kubelet's own.
	Launcher string

	Data     string   // default of {data}
	DataFlag []string // flags that move it, of the program that a unit starts
	Common   string   // {common}, which may be beside {data}
	// Program is where a running program of the distribution lies: it tells {data}. A part of it may be "*".
	Program string
	// Settings are files of the distribution, in YAML, that have the same flags as keys.
	Settings []string
	// NoKubelet tells by the arguments of the distribution's program that no kubelet is part of this node, as on a
	// node that runs the control plane only.
	NoKubelet func(args []string) bool

	// Kubelet's settings where neither its arguments nor its unit tell. Args is a file of flags, one a line; Flags are
	// given as the distribution gives them.
	Args, Config, ConfigDir string
	ArgsFlag                string // of the program: where Args is
	Flags                   []string

	Kubelet Kubelet
	Runtime Runtime
	// Traces are files and folders that only a node of this distribution has.
	Traces []string

	Found   string // what the agent finds by itself, for people
	Set     string // what must be set
	Install string // how the agent is installed there
	Sources []string
}

// Kubelet is where a distribution's kubelet keeps things.
type Kubelet struct {
	Root, Kubeconfig, StaticPods string
}

// Runtime is where a distribution's container runtime keeps things. Empty: as containerd itself.
type Runtime struct {
	Socket, Config, Root, State string
	Docker                      string // the socket in the place of Socket where the program has --docker
	CNIConf                     string
	CNIBins                     []string
}

// Commands are the commands of a distribution whose kubelet no unit of systemd runs.
type Commands struct{ Start, Restart, Status, Logs string }

// All returns the table. Distributions that are recognised by more come first: a node is of the first one that fits. The
// table and the lists made of it are made once, because checks ask them about each process of the node: do not change
// them.
var All = sync.OnceValue(func() []Distribution {
	return slices.Concat(embedding(), snaps(), clouds(), containers(), plain())
})

// first returns the first distribution of the table that fits.
func first(fits func(*Distribution) bool) (Distribution, bool) {
	all := All()
	for i := range all {
		if fits(&all[i]) {
			return all[i], true
		}
	}
	return Distribution{}, false
}

// ByID returns a distribution of the table.
func ByID(id string) (Distribution, bool) {
	return first(func(d *Distribution) bool { return d.ID == id })
}

// Embedding returns the distribution whose kubelet is part of a program of this name.
func Embedding(comm string) (Distribution, bool) {
	return first(func(d *Distribution) bool { return slices.Contains(d.Programs, comm) })
}

// OfUnit returns the distribution that a unit's name belongs to, with or without ".service".
func OfUnit(unit string) (Distribution, bool) {
	return first(func(d *Distribution) bool { return matches(d.Units, unit) })
}

// HasUnit reports whether a unit of that name, with or without ".service", runs kubelet in this distribution.
func (d Distribution) HasUnit(unit string) bool { return matches(d.Units, unit) }

// IsKubeletUnit reports whether a unit of that name runs a kubelet.
func IsKubeletUnit(unit string) bool {
	_, ok := OfUnit(unit)
	return ok
}

// IsRuntimeUnit reports whether a unit of that name runs a container runtime.
func IsRuntimeUnit(unit string) bool { return matches(RuntimeUnits(), unit) }

func matches(patterns []string, unit string) bool {
	unit = strings.TrimSuffix(unit, ".service")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		fits, err := path.Match(pattern, unit)
		return err == nil && fits
	})
}

// KubeletUnits are the units of all distributions that run kubelet, without ".service": patterns of path.Match.
var KubeletUnits = union(nil, func(d Distribution) []string { return d.Units })

// RuntimeUnits are the units of all distributions that run a container runtime, without ".service".
var RuntimeUnits = union(nil, func(d Distribution) []string { return d.RuntimeUnits })

// KubeletPrograms are the names of programs, as the kernel and the tags of a journal have them, that are a kubelet or
// have one in them.
var KubeletPrograms = union([]string{"kubelet", "hyperkube", "kubenswrapper", "kubelet-wrapper"},
	func(d Distribution) []string { return d.Programs })

// RuntimePrograms are the names of programs that are a container runtime.
func RuntimePrograms() []string {
	return []string{"containerd", "docker-containerd", "dockerd", "dockerd-current", "crio", "cri-dockerd"}
}

// Launchers are the programs that units of a distribution start, other than kubelet: a kubelet is part of them or a
// child of theirs, and its log is theirs.
var Launchers = union(nil, func(d Distribution) []string { return []string{d.Launcher} })

// OfLauncher returns the distribution whose units start a program file of this name.
func OfLauncher(name string) (Distribution, bool) {
	return first(func(d *Distribution) bool { return d.Launcher != "" && d.Launcher == name })
}

// Sockets are where the runtimes of all distributions serve CRI.
var Sockets = union(nil, func(d Distribution) []string { return []string{d.Expand(d.Runtime.Socket, "")} })

// EtcdDirs are where the distributions' control planes keep etcd's data.
func EtcdDirs() []string {
	return []string{"/var/lib/etcd", "/var/lib/rancher/k3s/server/db", "/var/lib/rancher/rke2/server/db",
		"/var/lib/k0s/etcd"}
}

// LocalVolumeDirs are the directories on which provisioners make local volumes, unless they are configured otherwise: K3s' and
// MicroK8s' own, Rancher's local-path-provisioner, OpenEBS, and the local static provisioner (its chart, its documentation).
func LocalVolumeDirs() []string {
	return []string{"/var/lib/rancher/k3s/storage", "/var/snap/microk8s/common/default-storage", "/opt/local-path-provisioner",
		"/var/openebs/local", "/mnt/fast-disks", "/mnt/disks"}
}

// union gathers once, without doubles, in the order of the table, after those given.
func union(given []string, of func(Distribution) []string) func() []string {
	return sync.OnceValue(func() []string {
		all := given
		for _, d := range All() {
			for _, value := range of(d) {
				if value != "" && !slices.Contains(all, value) {
					all = append(all, value)
				}
			}
		}
		return slices.Clip(all) // so that an append makes a copy
	})
}

// Expand puts the data directory into a path, or into a flag; the default where data is empty.
func (d Distribution) Expand(text, data string) string {
	data = cmp.Or(data, d.Data)
	common := filepath.Clean(strings.ReplaceAll(d.Common, "{data}", data))
	text = strings.NewReplacer("{data}", filepath.Clean(data), "{common}", common).Replace(text)
	if filepath.IsAbs(text) {
		return filepath.Clean(text)
	}
	return text
}

// DataOf returns the data directory that a path tells which is laid out as pattern: {data} and more parts, each a name
// or "*". Empty: it tells none.
func DataOf(pattern, name string) string {
	rest, ok := strings.CutPrefix(pattern, "{data}/")
	if !ok || !filepath.IsAbs(name) {
		return ""
	}
	parts, dir := strings.Split(rest, "/"), filepath.Clean(name)
	for _, part := range slices.Backward(parts) {
		if part != "*" && part != filepath.Base(dir) || dir == "/" {
			return ""
		}
		dir = filepath.Dir(dir)
	}
	if dir == "/" {
		return ""
	}
	return dir
}

// Embeds reports whether kubelet has no process of its own.
func (d Distribution) Embeds() bool { return len(d.Programs) > 0 }
