package checkkit

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// KubeletNetwork caches kubelet's network configuration for the life of its process.
type KubeletNetwork struct {
	process host.Process
	network discover.KubeletNetwork
}

// Get reads kubelet's files once for each of its processes, and every time if none runs.
func (k *KubeletNetwork) Get(h *host.Host) (discover.KubeletNetwork, error) {
	var process host.Process
	if h.Kubelet.Process != nil {
		process, _ = h.Kubelet.Process()
	}
	if process.PID != 0 && process.PID == k.process.PID && process.StartTime == k.process.StartTime {
		return k.network, nil
	}
	network, err := discover.ReadKubeletNetwork(h)
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return network, finding.NotApplicable("no configuration of kubelet was found on this host: no process of " +
			"kubelet, and no file of a distribution that docs/distributions.md lists. Where there is a kubelet " +
			"nevertheless, name a file with its clusterDNS as paths.kubeletConfig")
	}
	if err == nil {
		k.process, k.network = process, network
	}
	return network, err
}

// ClusterServers returns the name servers of the cluster. It skips malformed addresses: kubelet refuses to start with
// them.
func ClusterServers(network discover.KubeletNetwork) []netip.Addr {
	var servers []netip.Addr
	for _, text := range network.ClusterDNS[:min(len(network.ClusterDNS), MaxNameservers)] {
		if server, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			servers = append(servers, server)
		}
	}
	return servers
}

// KubeletInstalled reports whether kubelet is installed on this host, although it is not running.
func KubeletInstalled(h *host.Host) bool {
	if h.NodeName != "" {
		return true
	}
	if h.Paths.KubeletRoot == "" {
		return false
	}
	names, err := h.Files.List(filepath.Join(h.Paths.KubeletRoot, "pods"))
	return err == nil && len(names) > 0
}

// ThreadStates has the states of the threads of a process, from /proc/PID/task/TID/stat.
type ThreadStates struct {
	Main    byte // state of the main thread; 0 if it could not be read
	Blocked int  // threads in state D: in the kernel, not interruptible by signals
}

// maxThreads bounds how many threads of a hung daemon are read.
const maxThreads = 2000

// ReadThreadStates reads the states of a daemon that does not answer. In a Go program any thread may be the one that
// hangs in a system call, so the main thread alone is no proof. It skips unreadable threads: the process may end
// meanwhile.
func ReadThreadStates(h *host.Host, pid int) ThreadStates {
	var states ThreadStates
	if main, err := h.ProcStat(pid); err == nil {
		states.Main = main.State
	}
	tids, err := h.TIDs(pid)
	if err != nil {
		return states
	}
	for _, tid := range tids[:min(len(tids), maxThreads)] {
		if thread, err := h.TaskStat(pid, tid); err == nil && thread.State == 'D' {
			states.Blocked++
		}
	}
	return states
}
