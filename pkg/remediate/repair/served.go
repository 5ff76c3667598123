package repair

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/host/socket"
)

// storagePorts are the default ports of storage servers.
var storagePorts = map[uint16]string{
	111: "RPC, as of NFS", 445: "SMB", 564: "9P", 988: "Lustre", 2049: "NFS", 3260: "iSCSI", 3300: "Ceph", 4420: "NVMe over TCP",
	6789: "Ceph", 7000: "AFS", 8009: "NVMe discovery", 10809: "NBD", 24007: "Gluster",
}

// client is network storage in use on this node.
type client struct {
	server netip.Addr
	is     string // for people
}

// clients returns the network storage in use on this node: filesystems and block devices.
func clients(h *host.Host) ([]client, error) {
	table, err := mount.Table(h)
	if err != nil {
		return nil, err
	}
	var all []client
	for _, at := range table {
		if server, ok := serverOf(at); ok {
			all = append(all, client{server, at.Point + " is mounted"})
		}
	}
	for _, of := range []struct{ dir, file, is string }{
		{"/sys/class/nvme", "address", "NVMe controller"}, // traddr=10.0.0.7,trsvcid=4420,src_addr=…
		{"/sys/class/iscsi_connection", "persistent_address", "iSCSI connection"},
	} {
		names, err := h.Files.List(of.dir)
		if proc.Gone(err) {
			continue // no such driver
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := h.Files.Text(path.Join(of.dir, name, of.file))
			if proc.Gone(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("server of %s %s: %w", of.is, name, err)
			}
			for part := range strings.SplitSeq(text, ",") { // a local disk's address does not parse
				if server, err := netip.ParseAddr(strings.TrimPrefix(part, "traddr=")); err == nil {
					all = append(all, client{server.Unmap(), of.is + " " + name + " is connected"})
				}
			}
		}
	}
	return all, nil
}

// servesNobody refuses if the container serves storage to any client, on this node or another. A client of a Service
// has mounted the Service's address, not the pod's, so the server's end of the connections is checked as well.
func (r running) servesNobody(h *host.Host) error {
	all, err := clients(h)
	if err != nil {
		return err
	}
	for _, c := range all {
		if isOf(r.pod, c.server) {
			return refuse("%s from %s, which is an address of pod %s/%s", c.is, c.server, r.pod.Namespace, r.pod.Name)
		}
	}
	mine, err := r.sockets(h)
	if err != nil {
		return fmt.Errorf("connections of %s: %w", r, err)
	}
	hosts, err := socket.OfTCP(h, max(h.Paths.InitPID, 1))
	if err != nil {
		return fmt.Errorf("connections of this node: %w", err)
	}
	ports := map[uint16]bool{}
	for _, s := range mine {
		if !s.Listens {
			continue
		}
		ports[s.Local.Port()] = true
		if of := storagePorts[s.Local.Port()]; of != "" {
			return refuse("%s listens on port %d (%s): storage mounted from it, here or elsewhere, would be lost", r,
				s.Local.Port(), of)
		}
	}
	for _, s := range mine {
		if s.Listens || !ports[s.Local.Port()] {
			continue
		}
		if from := s.Remote.Port(); from < firstUnprivileged && !s.Remote.Addr().IsLoopback() {
			return refuse("%s is connected to port %d of %s from a port that only root may use, as a kernel that has mounted "+
				"storage from it", s.Remote, s.Local.Port(), r)
		}
		for _, c := range all {
			if slices.ContainsFunc(hosts, func(of socket.TCP) bool {
				return !of.Listens && of.Remote.Addr() == c.server && of.Local.Port() == s.Remote.Port()
			}) {
				return refuse("%s from %s, and %s has its connection, from port %d", c.is, c.server, r, s.Remote.Port())
			}
		}
	}
	return nil
}

// firstUnprivileged is the first port that does not need root. An NFS client uses a lower one, unless it is mounted
// with noresvport.
const firstUnprivileged = 1024

// sockets returns the TCP sockets that the container may serve: in the pod's network, all; in the host's, those of its
// processes, plus, if it is privileged, the kernel's own listeners on storage ports.
func (r running) sockets(h *host.Host) ([]socket.TCP, error) {
	all, err := socket.OfTCP(h, r.main.PID)
	if err != nil || !r.pod.Spec.HostNetwork {
		return all, err
	}
	held := map[uint64]bool{}
	for _, p := range r.processes {
		some, err := socket.Held(h, p.PID)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for inode := range some {
			held[inode] = true
		}
	}
	security := r.spec.SecurityContext
	privileged := security != nil && security.Privileged != nil && *security.Privileged
	return slices.DeleteFunc(all, func(s socket.TCP) bool {
		kernels := s.Inode == 0 && s.Listens && privileged && storagePorts[s.Local.Port()] != ""
		return !held[s.Inode] && !kernels || s.Inode == 0 && !kernels
	}), nil
}
