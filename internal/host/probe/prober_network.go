package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The probes of network cards, run by children.

// include/uapi/linux/ethtool.h, by hand: Stats of github.com/safchain/ethtool v0.7.0 passes the address of a variable
// on the stack as a number through a call, in which Go may move the stack, so that the kernel would write elsewhere. It
// does not notice when the number of counters changes between names and values, so that values belong to other
// counters; and it fails for a device without counters.
const (
	ethtoolGetStrings = 0x1b // struct ethtool_gstrings: cmd, string_set, len, then 32 bytes for each
	ethtoolGetStats   = 0x1d // struct ethtool_stats: cmd, n_stats, then 8 bytes for each
	ethtoolGetCounts  = 0x37 // struct ethtool_sset_info: cmd, reserved, 64 bit mask, then 4 bytes for each set
	ethtoolStats      = 1    // ETH_SS_STATS
	ethtoolNameSize   = 32
	// maxStats bounds how many counters a driver may have; cards with 128 queues have some 3,000.
	maxStats = 1 << 14
)

// probeAllowances reads the counters *_allowance_exceeded of the named devices.
func probeAllowances(names string) (ProbeAnswer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ProbeAnswer{}, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	answer := ProbeAnswer{Values: map[string]string{}}
	for name := range strings.SplitSeq(names, "/") {
		counters, err := driverCounters(fd, name)
		if err != nil {
			return ProbeAnswer{}, fmt.Errorf("counters of %s: %w", name, err)
		}
		for counter, value := range counters {
			if strings.HasSuffix(counter, "_allowance_exceeded") {
				answer.Values[name+"/"+counter] = strconv.FormatUint(value, 10)
			}
		}
	}
	return answer, nil
}

// driverCounters returns the driver's counters of a device, as ethtool -S does.
func driverCounters(fd int, name string) (map[string]uint64, error) {
	counts := make([]byte, 16+4)
	binary.NativeEndian.PutUint64(counts[8:], 1<<ethtoolStats)
	if err := ethtool(fd, name, ethtoolGetCounts, counts); err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint64(counts[8:]) == 0 {
		return nil, nil // the driver has no counters
	}
	n := int(binary.NativeEndian.Uint32(counts[16:]))
	if n > maxStats {
		return nil, fmt.Errorf("%d counters", n)
	}
	// If the number grows until they are read, the kernel writes the new number of them.
	names, values := make([]byte, 12+ethtoolNameSize*maxStats), make([]byte, 8+8*maxStats)
	binary.NativeEndian.PutUint32(names[4:], ethtoolStats)
	if err := ethtool(fd, name, ethtoolGetStrings, names); err != nil {
		return nil, err
	}
	if err := ethtool(fd, name, ethtoolGetStats, values); err != nil {
		return nil, err
	}
	if named := int(binary.NativeEndian.Uint32(names[8:])); named != n ||
		int(binary.NativeEndian.Uint32(values[4:])) != n {
		return nil, errors.New("the number of counters changes")
	}
	counters := make(map[string]uint64, n)
	for i := range n {
		counter := unix.ByteSliceToString(names[12+ethtoolNameSize*i:][:ethtoolNameSize])
		counters[counter] = binary.NativeEndian.Uint64(values[8+8*i:])
	}
	return counters, nil
}

// ethtool sends one request; data begins with room for the command.
func ethtool(fd int, name string, command uint32, data []byte) error {
	if len(name) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	binary.NativeEndian.PutUint32(data, command)
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data[0])}
	copy(request.name[:], name)
	err := ioctl(fd, unix.SIOCETHTOOL, unsafe.Pointer(&request))
	runtime.KeepAlive(data)
	return err
}

const (
	maxFabricPorts = 256
	maxFabricText  = 64
)

// fabricFiles are the files to read for each port, as far as its driver has them: mlx4 and mlx5, and EFA (hw_counters).
var fabricFiles = []string{
	"state", "phys_state", "link_layer",
	"counters/symbol_error", "counters/link_downed", "counters/link_error_recovery", "counters/port_rcv_errors",
	"counters/local_link_integrity_errors",
	"hw_counters/rx_drops", "hw_counters/retrans_timeout_events", "hw_counters/unresponsive_remote_events",
	"hw_counters/impaired_remote_conn_events",
}

// probeFabric reads the ports of all cards below a directory.
func probeFabric(dir string) (ProbeAnswer, error) {
	answer := ProbeAnswer{Values: map[string]string{}}
	cards, err := os.ReadDir(dir)
	if err != nil {
		return refusal(err)
	}
	ports := 0
	for _, card := range cards {
		numbers, err := os.ReadDir(path.Join(dir, card.Name(), "ports"))
		if err != nil {
			continue // removed meanwhile, or has no ports
		}
		for _, number := range numbers {
			if ports++; ports > maxFabricPorts {
				return ProbeAnswer{}, fmt.Errorf("more than %d ports", maxFabricPorts)
			}
			for _, file := range fabricFiles {
				text, err := os.ReadFile(path.Join(dir, card.Name(), "ports", number.Name(), file))
				if err != nil || len(text) > maxFabricText {
					continue // not every driver has all
				}
				value := strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD")
				answer.Values[card.Name()+"/"+number.Name()+"/"+path.Base(file)] = value
			}
		}
	}
	return answer, nil
}
