package repair

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
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
	udp    bool   // it has no connection by which its server could be found
}

// clients returns the network storage in use on this node: filesystems and block devices.
func clients(h *host.Host) ([]client, error) {
	table, err := mount.Table(h)
	if err != nil {
		return nil, err
	}
	var all []client
	for _, at := range table {
		for _, server := range serversOf(at) {
			all = append(all, client{server, at.Point + " is mounted", slices.Contains(at.SuperOptions, "proto=udp")})
		}
	}
	for _, of := range []struct{ dir, file, is string }{
		{"/sys/class/nvme", "address", "NVMe controller"}, // traddr=10.0.0.7,trsvcid=4420,src_addr=…
		{"/sys/class/iscsi_connection", "persistent_address", "iSCSI connection"},
		{"/sys/class/iscsi_connection", "address", "iSCSI connection"}, // where a portal has redirected it
		{"/sys/bus/rbd/devices", "config_info", "RBD device"},          // 10.0.0.7:6789,… name=…,… pool image -
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
			text, _, _ = strings.Cut(text, " ")
			text, _, _ = strings.Cut(strings.TrimPrefix(text, "traddr="), ",src_addr=") // the client's own address
			for _, server := range addresses(text, ",") {                               // a local disk's address does not parse
				all = append(all, client{server, of.is + " " + name + " is connected", false})
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
	if err := r.servesWithoutConnections(h, all); err != nil {
		return err
	}
	mine, err := r.sockets(h, socket.OfTCP)
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

// servesWithoutConnections refuses if the container may serve storage by RDMA or UDP, which show no connection of a client: it
// has a device of RDMA open, or a UDP port of a storage server, or any while a filesystem is mounted by UDP here.
func (r running) servesWithoutConnections(h *host.Host, all []client) error {
	for _, p := range r.processes {
		device, err := opensRDMA(h, p.PID)
		if err != nil {
			return fmt.Errorf("open files of process %d of %s: %w", p.PID, r, err)
		}
		if device != "" {
			return refuse("process %d of %s has %s open: who has mounted storage from it by RDMA is not known", p.PID, r, device)
		}
	}
	bound, err := r.sockets(h, socket.OfUDP)
	if err != nil {
		return fmt.Errorf("UDP sockets of %s: %w", r, err)
	}
	for _, s := range bound {
		if !s.Listens {
			continue
		}
		if server := storagePorts[s.Local.Port()]; server != "" {
			return refuse("%s listens on UDP port %d (%s): storage mounted from it, here or elsewhere, would be lost", r,
				s.Local.Port(), server)
		}
		i := slices.IndexFunc(all, func(c client) bool { return c.udp })
		if i >= 0 && !s.Local.Addr().IsLoopback() {
			return refuse("%s by UDP from %s, and %s listens on UDP port %d: whether it is the server, behind a Service, is not known",
				all[i].is, all[i].server, r, s.Local.Port())
		}
	}
	return nil
}

// opensRDMA returns a device of RDMA that a process has open; "" if there is none. Their names: drivers/infiniband/core.
func opensRDMA(h *host.Host, pid int) (string, error) {
	return holders.Opens(h, pid, func(target string) bool { return strings.HasPrefix(target, "/dev/infiniband/") })
}

// sockets returns the sockets that the container may serve: in the pod's network, all; in the host's, those of its
// processes, plus, if it is privileged, the kernel's own listeners on storage ports.
func (r running) sockets(h *host.Host, of func(*host.Host, int) ([]socket.TCP, error)) ([]socket.TCP, error) {
	all, err := of(h, r.main.PID)
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
	var mine []socket.TCP
	var ofAny map[uint64]bool // the sockets that processes of this node hold
	for _, s := range all {
		if s.Inode != 0 && held[s.Inode] {
			mine = append(mine, s)
			continue
		}
		if !s.Listens || !privileged || storagePorts[s.Local.Port()] == "" {
			continue
		}
		if ofAny == nil {
			if ofAny, err = heldByAny(h); err != nil {
				return nil, err
			}
		}
		if s.Inode == 0 || !ofAny[s.Inode] { // the kernel's own have an inode too
			mine = append(mine, s)
		}
	}
	return mine, nil
}

// heldByAny returns the inodes of the sockets that any process holds. No process holds those of the kernel's own servers.
func heldByAny(h *host.Host) (map[uint64]bool, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	all := map[uint64]bool{}
	for _, pid := range pids {
		some, err := socket.Held(h, pid)
		if err != nil && !proc.Gone(err) {
			return nil, err
		}
		maps.Copy(all, some)
	}
	return all, nil
}
