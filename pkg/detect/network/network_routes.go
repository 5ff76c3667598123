package network

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// defaultRoute is a default route of the main table.
type defaultRoute struct {
	device  string
	gateway string // as the kernel writes it, hexadecimal; zeros for none
	metric  uint64
}

const (
	rtfUp     = 0x1
	rtfReject = 0x200
)

// defaultRoutes4 finds the default routes in /proc/net/route, the best first:
//
//	Iface  Destination  Gateway   Flags  RefCnt  Use  Metric  Mask      MTU  Window  IRTT
//	eth0   00000000     010200C0  0003   0       0    100     00000000  0    0       0
func defaultRoutes4(text string) ([]defaultRoute, error) {
	var routes []defaultRoute
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "Iface" {
			continue
		}
		if len(fields) < 8 {
			return nil, checkkit.InLine(line, errors.New("want 11 fields"))
		}
		flags, err := parseCount(fields[3], 16)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		metric, err := parseCount(strings.TrimPrefix(fields[6], "-"), 10)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		if fields[1] == "00000000" && fields[7] == "00000000" && flags&rtfUp != 0 && flags&rtfReject == 0 &&
			fields[0] != "*" {
			routes = append(routes, defaultRoute{fields[0], fields[2], metric})
		}
	}
	return bestFirst(routes), nil
}

// defaultRoutes6 finds the default routes in /proc/net/ipv6_route, the best first. Fields: destination, prefix length,
// source, prefix length, gateway, metric, references, use, flags, device.
func defaultRoutes6(text string) ([]defaultRoute, error) {
	const zero = "00000000000000000000000000000000"
	var routes []defaultRoute
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 10 {
			return nil, checkkit.InLine(line, errors.New("want 10 fields"))
		}
		if fields[0] != zero || fields[1] != "00" || fields[3] != "00" {
			continue
		}
		metric, err := parseCount(fields[5], 16)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		flags, err := parseCount(fields[8], 16)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		if flags&rtfUp != 0 && flags&rtfReject == 0 && fields[9] != "lo" {
			routes = append(routes, defaultRoute{fields[9], fields[4], metric})
		}
	}
	return bestFirst(routes), nil
}

func bestFirst(routes []defaultRoute) []defaultRoute {
	slices.SortStableFunc(routes, func(a, b defaultRoute) int { return cmp.Compare(a.metric, b.metric) })
	return routes
}

// readDefaultRoutes returns the default routes of both families. A kernel without IPv6 has no such file.
func readDefaultRoutes(files host.Files) (four, six []defaultRoute, err error) {
	if four, err = checkkit.Parse(files, "/proc/net/route", defaultRoutes4); err != nil {
		return nil, nil, err
	}
	six, err = checkkit.Parse(files, "/proc/net/ipv6_route", defaultRoutes6)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return four, six, err
}
