package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// softnet reads /proc/net/softnet_stat, hexadecimal, a line for each processor that is online. The columns have no
// names:
//
//	00194bbf 000000e5 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 …
//	processed dropped time_squeeze … the 13th is the processor's number (Linux 5.10)
//
// dropped: the processor's backlog (net.core.netdev_max_backlog) was full; packets of veth devices, that is, of all
// pods, and packets steered between processors go through it. time_squeeze: it had more packets than its budget, and
// the rest waited. https://docs.kernel.org/networking/scaling.html,
// https://docs.kernel.org/admin-guide/sysctl/net.html, net/core/net-procfs.c

const (
	softnetDrops   = 1.0 // per second, over five minutes, all processors together
	softnetSqueeze = 100.0
	maxProcessors  = 8192
)

// Softnet finds processors that cannot keep up with received packets.
func Softnet() detect.Check {
	c := &countersCheck{window: counterWindow{Span: 5 * time.Minute}}
	return detect.Check{
		ID: "softnet", Domain: "network",
		Summary: "processors cannot keep up with received packets: some are dropped before any program sees them",
		Advice: "The facts name the processors. Distribute the card's interrupts (`cat /proc/interrupts`, " +
			"irqbalance) and its queues (`ethtool -l X`, RPS). For drops raise net.core.netdev_max_backlog, for " +
			"squeezes net.core.netdev_budget.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/softnet_stat"},
			Why:   "All packets from and to pods go through these queues; drops there are counted nowhere else.",
			Faults: []detect.Fault{
				{Reason: "BacklogDrops", Severity: finding.Warning,
					When: "one packet per second is dropped, over 5 minutes"},
				{Reason: "BacklogSqueezed", Severity: finding.Info, When: "one processor exhausts its budget 100 " +
					"times per second, over 5 minutes"},
			},
			FalseAlarms: "Occasional squeezes are normal on a busy node and only delay packets.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: 2 * time.Minute}},
		Run:    c.softnet,
	}
}

func (c *countersCheck) softnet(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	data, err := h.Files.Read("/proc/net/softnet_stat")
	if err != nil {
		return nil, err
	}
	counters, cpus, err := parseSoftnet(string(data))
	if err != nil {
		return nil, fmt.Errorf("read /proc/net/softnet_stat: %w", err)
	}
	c.window.Add(h.Clock().SinceBoot, counters)
	drops, squeeze := 0.0, 0.0
	var dropping, squeezed []string
	for _, cpu := range cpus {
		if by, rate, ok := c.window.Rate("dropped"+cpu, rateLeast); ok && by > 0 {
			drops += rate
			dropping = append(dropping, cpu)
		}
		_, rate, _ := c.window.Rate("squeezed"+cpu, rateLeast)
		if found, _ := reachesRate(rate, softnetSqueeze); found {
			squeeze = max(squeeze, rate)
			squeezed = append(squeezed, cpu)
		}
	}
	var faults []networkFault
	if found, belowRaise := reachesRate(drops, softnetDrops); found {
		faults = append(faults, networkFault{
			reason: "BacklogDrops", belowRaise: belowRaise,
			text: fmt.Sprintf("%s/s packets were dropped by CPU %s", formatRate(drops),
				finding.JoinFirst(dropping, 5)),
		})
	}
	if len(squeezed) > 0 {
		faults = append(faults, networkFault{
			reason: "BacklogSqueezed", info: true, belowRaise: squeeze < softnetSqueeze,
			text: fmt.Sprintf("CPU %s exhausted the budget for packets up to %s times per second",
				finding.JoinFirst(squeezed, 5), formatRate(squeeze)),
		})
	}
	return mergeForNode(h, faults, map[string]string{"dropping": finding.JoinFirst(dropping, 20),
		"squeezed": finding.JoinFirst(squeezed, 20)}), nil
}

// parseSoftnet returns the counters, and the processors in the order of their lines.
func parseSoftnet(text string) (counters map[string]uint64, cpus []string, err error) {
	counters = map[string]uint64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 9 || len(cpus) >= maxProcessors {
			return nil, nil, checkkit.InLine(line, errors.New("want 9 numbers or more"))
		}
		cpu := strconv.Itoa(len(cpus))
		if len(fields) > 12 {
			number, err := parseCount(fields[12], 16)
			if err != nil {
				return nil, nil, checkkit.InLine(line, err)
			}
			cpu = fmt.Sprint(number)
		}
		for i, key := range []string{"dropped", "squeezed"} {
			value, err := parseCount(fields[1+i], 16)
			if err != nil {
				return nil, nil, checkkit.InLine(line, err)
			}
			counters[key+cpu] = value
		}
		cpus = append(cpus, cpu)
	}
	if len(cpus) == 0 {
		return nil, nil, fmt.Errorf("%q: no processor", checkkit.Sanitize(text, checkkit.MaxName))
	}
	return counters, slices.Clip(cpus), nil
}
