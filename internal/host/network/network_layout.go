// Package network reads the links, routes, TCP connections and packet filter of the host, or a test's replacement for
// them. It never writes, and makes no query for which the kernel would have to load a module.
package network

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
)

// ReadLayout reads devices, addresses and default routes from the kernel.
func ReadLayout(h *host.Host) (hostnetlink.NetworkLayout, error) {
	if h.Network.Layout != nil {
		return h.Network.Layout()
	}
	if h.Files.Root != "" {
		return hostnetlink.NetworkLayout{}, fmt.Errorf("network layout: %w", hosterr.ErrNotConfigured)
	}
	socket, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return hostnetlink.NetworkLayout{}, fmt.Errorf("open route socket: %w", err)
	}
	defer socket.Close()
	links, err := dumpLinks(socket)
	if err != nil {
		return hostnetlink.NetworkLayout{}, err
	}
	addresses, err := deviceAddresses(socket)
	if err != nil {
		return hostnetlink.NetworkLayout{}, err
	}
	var layout hostnetlink.NetworkLayout
	for _, link := range links {
		device := networkDevice(link)
		device.Addresses = addresses[device.Index]
		layout.Devices = append(layout.Devices, device)
	}
	layout.Defaults, err = defaultRoutes(socket)
	return layout, err
}

func networkDevice(link netlink.Link) hostnetlink.NetworkDevice {
	at := link.Attrs()
	d := hostnetlink.NetworkDevice{
		Index: at.Index, Name: at.Name, Kind: link.Type(), MTU: at.MTU, Lower: at.ParentIndex, Master: at.MasterIndex,
		Up: at.RawFlags&unix.IFF_UP != 0,
	}
	switch tunnel := link.(type) {
	case *netlink.Veth:
		d.Lower, d.Elsewhere = 0, at.NetNsID >= 0
	case *netlink.Vxlan:
		d.Lower, d.External, d.IPv6 = tunnel.VtepDevIndex, tunnel.FlowBased, tunnel.SrcAddr != nil &&
			tunnel.SrcAddr.To4() == nil
	case *netlink.Geneve:
		d.External, d.IPv6 = tunnel.FlowBased, tunnel.Remote != nil && tunnel.Remote.To4() == nil
	case *netlink.Iptun:
		d.External = tunnel.FlowBased
	}
	return d
}

func deviceAddresses(socket *netlink.Handle) (map[int][]netip.Prefix, error) {
	list, err := hostnetlink.WholeDump(func() ([]netlink.Addr, error) { return socket.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addresses := map[int][]netip.Prefix{}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ok {
			addresses[a.LinkIndex] = append(addresses[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return addresses, nil
}

// defaultRoutes lists the default routes of the main table. A route with several next hops counts once for each.
func defaultRoutes(socket *netlink.Handle) ([]hostnetlink.DefaultRoute, error) {
	var found []hostnetlink.DefaultRoute
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}
		routes, err := hostnetlink.WholeDump(func() ([]netlink.Route, error) {
			return socket.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			gateway, _ := netip.AddrFromSlice(r.Gw)
			route := hostnetlink.DefaultRoute{Device: r.LinkIndex, Gateway: gateway.Unmap(), Metric: r.Priority,
				IPv6: family == netlink.FAMILY_V6}
			if len(r.MultiPath) == 0 {
				found = append(found, route)
			}
			for _, hop := range r.MultiPath {
				route.Device = hop.LinkIndex
				gateway, _ := netip.AddrFromSlice(hop.Gw)
				route.Gateway = gateway.Unmap()
				found = append(found, route)
			}
		}
	}
	return found, nil
}
