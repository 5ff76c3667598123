package kubelethealth

import (
	"bufio"
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// portOwner is the kubelet process that provably holds the healthz port: once bound, the port belongs to the process
// for life, so this is read once for each kubelet. (A kubelet that finds its port taken goes on without it and tries
// again every 5 s.)
type portOwner struct {
	pid   int
	start uint64
}

// impostor reports whether it is proven that another process than kubelet listens at the address that answered. A
// failed read is no evidence.
func (o *portOwner) impostor(h *host.Host, kubelet host.Process, healthz string, answered bool) bool {
	if !answered || o.pid == kubelet.PID && o.start == kubelet.StartTime {
		return false
	}
	address, err := url.Parse(healthz)
	if err != nil {
		return false
	}
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	if err != nil {
		return false
	}
	inodes, err := listeners(h, kubelet.PID, uint16(port))
	if err != nil || len(inodes) == 0 {
		return false
	}
	holds, err := discover.HoldsSocket(h, kubelet.PID, inodes)
	if err != nil {
		return false
	}
	if holds {
		o.pid, o.start = kubelet.PID, kubelet.StartTime
	}
	return !holds
}

// listeners returns the inodes of all sockets that listen on a TCP port in the network namespace of a process.
func listeners(h *host.Host, pid int, port uint16) (map[string]bool, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		found, err := checkkit.Parse(h.Files, fmt.Sprintf("/proc/%d/net/%s", pid, table),
			func(data []byte) ([]string, error) { return parseListeners(data, port) })
		if err != nil {
			return nil, err
		}
		for _, inode := range found {
			inodes[inode] = true
		}
	}
	return inodes, nil
}

// parseListeners reads /proc/net/tcp or tcp6:
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 24342 1 …
//
// https://docs.kernel.org/networking/proc_net_tcp.html. State 0A is LISTEN.
func parseListeners(data []byte, port uint16) ([]string, error) {
	var inodes []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 0; lines.Scan(); number++ {
		fields := strings.Fields(lines.Text())
		if number == 0 || len(fields) == 0 {
			continue
		}
		if len(fields) < 10 {
			return nil, fmt.Errorf("line %d has %d fields: %q", number+1, len(fields),
				checkkit.Sanitize(lines.Text(), 200))
		}
		_, hex, ok := strings.Cut(fields[1], ":")
		local, err := strconv.ParseUint(hex, 16, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("line %d: malformed local address %q", number+1, fields[1])
		}
		if fields[3] == "0A" && uint16(local) == port {
			inodes = append(inodes, fields[9])
		}
	}
	return inodes, lines.Err()
}
