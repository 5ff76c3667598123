package network

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
)

// Veth is one end of a pair of virtual Ethernet devices, as seen in the caller's network namespace.
type Veth struct {
	Index           int
	Name            string
	MAC             string
	Master          int    // index of the bridge whose port it is; 0 for none
	MasterName      string //
	PeerIndex       int    // in the peer's namespace; 0 if the kernel does not report it
	PeerNamespaceID int    // this namespace's number for the peer's; -1: the peer is in this one
	Up              bool
}

// Veths lists the veth devices of this network namespace, and its number (nsid) for each of the namespaces mounted at
// the given paths, if it has one: the kernel assigns it when a device first gets a peer there. Reading assigns none.
func Veths(h *host.Host, netnsMounts []string) (veths []Veth, namespaceIDs map[string]int, err error) {
	socket, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open route socket: %w", err)
	}
	defer socket.Close()
	links, err := dumpLinks(socket)
	if err != nil {
		return nil, nil, err
	}
	names := make(map[int]string)
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	for _, link := range links {
		if at := link.Attrs(); link.Type() == "veth" {
			veths = append(veths, Veth{
				Index: at.Index, Name: at.Name, MAC: at.HardwareAddr.String(), Master: at.MasterIndex,
				MasterName: names[at.MasterIndex],
				PeerIndex:  at.ParentIndex, PeerNamespaceID: at.NetNsID, Up: at.RawFlags&unix.IFF_UP != 0,
			})
		}
	}
	namespaceIDs = make(map[string]int)
	for _, netns := range netnsMounts {
		id, err := namespaceID(h, socket, netns)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			continue // unmounted meanwhile
		}
		if err != nil {
			return nil, nil, fmt.Errorf("number of network namespace %s: %w", netns, err)
		}
		if id >= 0 {
			namespaceIDs[netns] = id
		}
	}
	return veths, namespaceIDs, nil
}

// dumpLinks lists all links.
func dumpLinks(socket *netlink.Handle) ([]netlink.Link, error) {
	links, err := hostnetlink.WholeDump(socket.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// namespaceID returns the number of the namespace mounted at a path. It opens the file only briefly, because an open
// one keeps the namespace alive.
func namespaceID(h *host.Host, socket *netlink.Handle, netns string) (int, error) {
	fd, err := unix.Open(h.Files.Path(netns), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return socket.GetNetNsIdByFd(fd)
}

// PluginOfLink returns the network plugin that uses such a name for the host's end of a pod's veth pair; empty for
// other names. It is for display only: a name is no proof. The names of Calico, AWS and Azure contain a digest of the
// pod's namespace and name, so a recreated pod has the same one.
func PluginOfLink(link string) string {
	for _, of := range []struct {
		plugin, prefix string
		digits         []int // hexadecimal, after the prefix
	}{
		{"Calico", "cali", []int{11}}, {"AWS VPC CNI", "eni", []int{11}}, {"Azure CNI", "azv", []int{11}},
		{"Cilium", "lxc", []int{11, 12}}, {"bridge or flannel", "veth", []int{8}},
	} {
		digits, ok := strings.CutPrefix(link, of.prefix)
		if ok && slices.Contains(of.digits, len(digits)) && strings.Trim(digits, "0123456789abcdef") == "" {
			return of.plugin
		}
	}
	return ""
}
