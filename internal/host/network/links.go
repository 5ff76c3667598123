package network

import (
	"errors"
	"fmt"

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
