package netlink

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/watch"
)

// maxKnownLinks bounds the links that a watcher remembers; beyond, every message counts as a change.
const maxKnownLinks = 1024

// WatchLinks calls changed after a state change of a link that may carry the node's own packets: a card, a bond or a
// team went up or down, appeared or was removed. It ignores links created for pods (veth, and all others created by
// software) and a bridge's messages about its ports: a hundred pods that start in a second cause thousands of messages.
// It ends with ctx and then returns nil.
func WatchLinks(ctx context.Context, changed func()) error {
	fd, err := openLinkSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	end, release, err := watch.CancelDescriptor(ctx)
	if err != nil {
		return err
	}
	defer release()
	both := []unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}, {Fd: int32(fd), Events: unix.POLLIN}}
	w := linkWatch{fd: fd, buffer: make([]byte, 32<<10), known: map[int]linkState{}}
	for {
		n, err := watch.Poll(both, watch.RecheckEvery)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("poll link changes: %w", err)
		case n == 0:
			continue
		}
		relevant, err := w.drain()
		if err != nil {
			return err
		}
		if relevant {
			changed()
		}
		// Messages of a burst are read together.
		if _, err := watch.Poll(both[:1], watch.WatchGap); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
	}
}

// openLinkSocket returns a socket on which the kernel reports changes of links, except most of those for pods.
func openLinkSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("open route socket: %w", err)
	}
	filter := linkFilter()
	// Without the filter no message is missed; it only costs more.
	_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)),
		Filter: &filter[0]})
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: 1 << (unix.RTNLGRP_LINK - 1)}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("subscribe to link changes: %w", err)
	}
	return fd, nil
}

// linkFilter makes the kernel drop, before it wakes the reader, a bridge's messages about its ports and all messages
// about links of kind veth. A message without an attribute that the filter looks up is kept.
func linkFilter() []unix.SockFilter {
	const (
		extensions = 0xfffff000      // SKF_AD_OFF
		find       = extensions + 12 // SKF_AD_NLATTR: A is the offset of attribute X, searched from A on; 0 if absent
		findWithin = extensions + 16 // SKF_AD_NLATTR_NEST: the same within the attribute at A
		attributes = unix.NLMSG_HDRLEN + unix.SizeofIfInfomsg
		veth       = 'v'<<24 | 'e'<<16 | 't'<<8 | 'h'
		keep, drop = 0xffffffff, 0
	)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.NLMSG_HDRLEN}, // ifi_family
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_BRIDGE, Jt: 11},
		{Code: unix.BPF_LD | unix.BPF_IMM, K: attributes},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.IFLA_LINKINFO},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: find},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 6},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.IFLA_INFO_KIND},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: findWithin},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 3},
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofRtAttr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: veth, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: keep},
		{Code: unix.BPF_RET | unix.BPF_K, K: drop},
	}
}

// linkState is the relevant state of a link.
type linkState struct {
	flags uint32 // IFF_UP, IFF_RUNNING and IFF_LOWER_UP
	oper  netlink.LinkOperState
}

type linkWatch struct {
	fd     int
	buffer []byte
	known  map[int]linkState // by index
}

// drain reads all messages that have arrived and reports whether any of them matters.
func (w *linkWatch) drain() (relevant bool, err error) {
	for {
		n, from, err := unix.Recvfrom(w.fd, w.buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return relevant, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // messages were lost, with unknown content
			relevant = true
			clear(w.known)
			continue
		case err != nil:
			return relevant, fmt.Errorf("read link changes: %w", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 && w.datagram(w.buffer[:n]) {
			relevant = true
		}
	}
}

// datagram reports whether a message of a datagram matters. A truncated or unexpected one may.
func (w *linkWatch) datagram(data []byte) (relevant bool) {
	messages, err := syscall.ParseNetlinkMessage(data)
	for _, m := range messages {
		relevant = w.message(m) || relevant
	}
	return relevant || err != nil
}

func (w *linkWatch) message(m syscall.NetlinkMessage) bool {
	kind := m.Header.Type
	if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg ||
		m.Data[0] != unix.AF_UNSPEC {
		return false
	}
	link, err := netlink.LinkDeserialize((*unix.NlMsghdr)(&m.Header), m.Data)
	if err != nil {
		return true
	}
	if software := link.Type(); software != "device" && software != "bond" && software != "team" {
		return false
	}
	attributes := link.Attrs()
	old, known := w.known[attributes.Index]
	if kind == unix.RTM_DELLINK {
		delete(w.known, attributes.Index)
		return true
	}
	state := linkState{attributes.RawFlags & (unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP), attributes.OperState}
	if known || len(w.known) < maxKnownLinks {
		w.known[attributes.Index] = state
	}
	return !known || old != state
}
