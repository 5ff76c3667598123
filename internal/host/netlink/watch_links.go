package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/watch"
)

// Offsets in RTM_NEWLINK and RTM_DELLINK: struct nlmsghdr, struct ifinfomsg, attributes.
// include/uapi/linux/rtnetlink.h.
const (
	IfinfoSize = 16
	attrHeader = 4
	// iflaMask takes off the flags that an attribute's type may carry.
	iflaMask = 0x3fff
	// maxKnownLinks bounds what a watcher remembers; beyond, every message counts as a change.
	maxKnownLinks = 1024
)

// WatchLinks calls changed after the state of a link changed that packets of the node itself may take: a card, a bond
// or a team went up or down, came or went. What is made for pods (veth, and whatever else is made by software) and
// what a bridge tells of its ports is passed over: a hundred pods that start in a second cause thousands of messages.
// It ends with ctx and then returns nil.
func WatchLinks(ctx context.Context, changed func()) error {
	fd, err := OpenLinkSocket()
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
	w := linkWatch{fd: fd, buffer: make([]byte, 32<<10), known: map[int32]linkState{}}
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
		told, err := w.drain()
		if err != nil {
			return err
		}
		if told {
			changed()
		}
		// Messages of a burst are read together.
		if _, err := watch.Poll(both[:1], watch.WatchGap); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
	}
}

// OpenLinkSocket returns a socket to which the kernel tells changes of links, but for most of those that are made for
// pods.
func OpenLinkSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("open route socket: %w", err)
	}
	filter := linkFilter()
	// Without it nothing is missed; it only costs more.
	_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)),
		Filter: &filter[0]})
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: 1 << (unix.RTNLGRP_LINK - 1)}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen to link changes: %w", err)
	}
	return fd, nil
}

// linkFilter makes the kernel drop, before it wakes anybody, what a bridge tells of its ports and all that is of kind
// veth. A message that lacks what is asked for is kept.
func linkFilter() []unix.SockFilter {
	const (
		extensions = 0xfffff000      // SKF_AD_OFF
		find       = extensions + 12 // SKF_AD_NLATTR: A is where attribute X is, sought from A on; 0 when it is absent
		findWithin = extensions + 16 // SKF_AD_NLATTR_NEST: the same within the attribute at A
		attributes = unix.NLMSG_HDRLEN + IfinfoSize
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
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: attrHeader},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: veth, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: keep},
		{Code: unix.BPF_RET | unix.BPF_K, K: drop},
	}
}

// linkState is what of a link matters.
type linkState struct {
	flags uint32 // IFF_UP, IFF_RUNNING and IFF_LOWER_UP
	oper  uint8  // IFLA_OPERSTATE
}

type linkWatch struct {
	fd     int
	buffer []byte
	known  map[int32]linkState // by index
}

// drain reads all that is there and reports whether anything of it matters.
func (w *linkWatch) drain() (told bool, err error) {
	for {
		n, from, err := unix.Recvfrom(w.fd, w.buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return told, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // more came than was read: nobody knows what
			told = true
			clear(w.known)
			continue
		case err != nil:
			return told, fmt.Errorf("read link changes: %w", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 && w.messages(w.buffer[:n]) {
			told = true
		}
	}
}

// messages looks at the messages of one datagram.
func (w *linkWatch) messages(data []byte) (told bool) {
	for len(data) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.NLMSG_HDRLEN || length > len(data) {
			return true // cut off, or not what is expected: better look
		}
		if w.message(binary.NativeEndian.Uint16(data[4:]), data[unix.NLMSG_HDRLEN:length]) {
			told = true
		}
		data = data[min((length+3)&^3, len(data)):]
	}
	return told
}

// message reports whether a message matters.
func (w *linkWatch) message(kind uint16, body []byte) bool {
	if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || len(body) < IfinfoSize || body[0] != unix.AF_UNSPEC {
		return false
	}
	index := int32(binary.NativeEndian.Uint32(body[4:]))
	state := linkState{flags: binary.NativeEndian.Uint32(body[8:]) & (unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP)}
	software := ""
	Attributes(body[IfinfoSize:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_OPERSTATE:
			if len(value) > 0 {
				state.oper = value[0]
			}
		case unix.IFLA_LINKINFO:
			Attributes(value, func(kind uint16, value []byte) {
				if kind == unix.IFLA_INFO_KIND {
					software = string(value[:max(len(value)-1, 0)]) // ends with a NUL
				}
			})
		}
	})
	if software != "" && software != "bond" && software != "team" {
		return false
	}
	old, known := w.known[index]
	if kind == unix.RTM_DELLINK {
		delete(w.known, index)
		return true
	}
	if known || len(w.known) < maxKnownLinks {
		w.known[index] = state
	}
	return !known || old != state
}

// Attributes calls each for every attribute in data; what is malformed ends it.
func Attributes(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= attrHeader {
		length := int(binary.NativeEndian.Uint16(data))
		if length < attrHeader || length > len(data) {
			return
		}
		each(binary.NativeEndian.Uint16(data[2:])&iflaMask, data[attrHeader:length])
		data = data[min((length+3)&^3, len(data)):]
	}
}
