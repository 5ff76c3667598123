package socket

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// TCP is a socket of TCP, or of UDP, that listens or has a connection.
type TCP struct {
	Local, Remote netip.AddrPort
	Listens       bool
	Waiting       uint64 // connections that a listening socket has not accepted
	Inode         uint64 // 0: no process holds it, as of those that the kernel serves itself, or has not accepted yet
}

// States in /proc/net/tcp: include/net/tcp_states.h.
const (
	tcpEstablished = "01"
	tcpSynReceived = "03" // the client may take it for established
	tcpListen      = "0A"
	udpBound       = "07" // TCP_CLOSE: without a peer
)

// OfTCP returns the sockets of TCP in the network namespace of a process which listen or have a connection. It reads
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:0801 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20511 1 …
//
// of /proc/PID/net/tcp and tcp6: https://docs.kernel.org/networking/proc_net_tcp.html
func OfTCP(h *host.Host, pid int) ([]TCP, error) { return sockets(h, pid, "tcp", tcpListen) }

// OfUDP returns the sockets of UDP in the network namespace of a process: those that take packets of any sender listen. The files
// udp and udp6 have the form of tcp: udp4_format_sock in net/ipv4/udp.c of Linux.
func OfUDP(h *host.Host, pid int) ([]TCP, error) { return sockets(h, pid, "udp", udpBound) }

func sockets(h *host.Host, pid int, protocol, listen string) ([]TCP, error) {
	var all []TCP
	for _, name := range []string{"net/" + protocol, "net/" + protocol + "6"} {
		var data []byte
		err := proc.Shown(h.Files, pid, func(id int) (err error) {
			data, err = h.Files.Read(proc.File(id, name))
			return err
		})
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, "6") {
			continue // no IPv6 on this node
		}
		if err != nil {
			return nil, err
		}
		some, err := parseSockets(string(data), listen)
		if err != nil {
			return nil, fmt.Errorf("%s of process %d: %w", name, pid, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func parseSockets(text, listen string) (all []TCP, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "sl" || len(fields) == 0 {
			continue
		}
		if len(fields) < 10 {
			return nil, fmt.Errorf("line %q has %d fields", strings.TrimSpace(line), len(fields))
		}
		if fields[3] != tcpEstablished && fields[3] != tcpSynReceived && fields[3] != listen {
			continue
		}
		t := TCP{Listens: fields[3] == listen}
		var problems [4]error
		t.Local, problems[0] = parseEnd(fields[1])
		t.Remote, problems[1] = parseEnd(fields[2])
		t.Inode, problems[2] = strconv.ParseUint(fields[9], 10, 64)
		if _, queue, _ := strings.Cut(fields[4], ":"); t.Listens && listen == tcpListen {
			t.Waiting, problems[3] = strconv.ParseUint(queue, 16, 32)
		}
		if err := errors.Join(problems[:]...); err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
		}
		all = append(all, t)
	}
	return all, nil
}

// parseEnd parses an address, whose words of 4 bytes are in the machine's order, and a port. All that the agent runs on
// are little-endian.
func parseEnd(text string) (netip.AddrPort, error) {
	address, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(address)
	if err != nil || len(bytes)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q", text)
	}
	for word := range slices.Chunk(bytes, 4) {
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(bytes)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

// Held returns the inodes of the sockets that a process has open, in any of its threads. proc.Gone is true for the error if
// it is gone.
func Held(h *host.Host, pid int) (map[uint64]bool, error) {
	if _, err := h.ProcStat(pid); err != nil {
		return nil, err
	}
	held := map[uint64]bool{}
	_, err := holders.Opens(h, pid, func(target string) bool {
		inner, ok := strings.CutPrefix(target, "socket:[")
		if inode, err := strconv.ParseUint(strings.TrimSuffix(inner, "]"), 10, 64); ok && err == nil {
			held[inode] = true
		}
		return false // all
	})
	if err != nil {
		return nil, err
	}
	if stat, err := h.ProcStat(pid); err != nil {
		return nil, err
	} else if proc.Exiting(stat) && stat.Threads <= 1 { // its files may have been closed before they were read
		return nil, fmt.Errorf("process %d ends: %w", pid, fs.ErrNotExist)
	}
	return held, nil
}
