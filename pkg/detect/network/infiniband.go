package network

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// infiniband reads for each port, in a child process (each read is a command to the card's firmware, which may hang)
//
//	/sys/class/infiniband/mlx5_0/ports/1/state         4: ACTIVE      (1: DOWN, 2: INIT, 3: ARMED)
//	/sys/class/infiniband/mlx5_0/ports/1/phys_state    5: LinkUp      (2: Polling, 3: Disabled, 4: PortConfigurationTraining)
//	/sys/class/infiniband/mlx5_0/ports/1/link_layer    InfiniBand     (Ethernet: RoCE, whose link is that of its network device)
//	/sys/class/infiniband/mlx5_0/ports/1/counters/{symbol_error,link_downed,link_error_recovery,port_rcv_errors,…}
//	/sys/class/infiniband/rdmap0s31/ports/1/hw_counters/{rx_drops,retrans_timeout_events,…}     (EFA)
//
// https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
//
// Symbol errors: the specification allows a bit error rate of 1e-12, about 120 per hour at 10 Gbit/s. 16-bit counters
// of old cards stop at their maximum, which does not count as a rise.

// fabricDir is the directory that the child process reads.
const fabricDir = "/sys/class/infiniband"

// Infiniband finds ports of RDMA cards that are down, flap or damage packets. The store may be nil: then ports that
// were active before the agent started are not known.
func Infiniband(store detect.StateStore) detect.Check {
	c := &fabricCheck{history: loadLinkHistory(store, "infiniband/ports"), window: counterWindow{Span: flapWindow}}
	return detect.Check{
		ID: "infiniband", Domain: "network",
		Summary: "a port of an InfiniBand or EFA card is down, flaps or damages packets",
		Advice: "Check the port with `ibstat` and `perfquery -x`, and its peer with `iblinkinfo`. For symbol and " +
			"receive errors replace the cable or transceiver. If the state is INIT, check the subnet manager: none " +
			"has configured the port.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/infiniband/*/ports/*/{state,phys_state,link_layer,counters/*,hw_counters/*}, " +
				"by a child process"},
			Why: "A job that spans nodes runs only as fast as its slowest port.",
			Faults: []detect.Fault{
				{Reason: "PortDown", Severity: finding.Warning, When: "a port that was active is no longer, and is " +
					"not disabled, in two runs over 30 s"},
				{Reason: "PortFlapping", Severity: finding.Warning, When: "3 losses of link within 10 minutes"},
				{Reason: "PortErrors", Severity: finding.Warning, When: "over 10 minutes: 2 symbol errors per " +
					"minute, a receive error every ten seconds, one link recovery, or 100 dropped packets per second"},
				{Reason: "PortRetransmits", Severity: finding.Info, When: "EFA: a retransmission timeout, or a peer " +
					"that does not answer, every ten seconds"},
			},
			FalseAlarms: "Ports that were never active or are disabled are ignored. RoCE ports belong to network " +
				"devices: see link-state. A subnet manager that restarts leaves ports in INIT or ARMED for seconds.",
		},
		Every: time.Minute, Deadline: 20 * time.Second,
		Wakes: []detect.Wake{{Source: detect.WakeLinks}},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 30 * time.Second},
			Clear: finding.Hold{Runs: 2, For: 30 * time.Second}},
		Run: c.observe,
	}
}

type fabricCheck struct {
	history linkHistory
	window  counterWindow
}

func (c *fabricCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := checkkit.ListSorted(h.Files, fabricDir)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, finding.NotApplicable("no InfiniBand or EFA card")
	}
	ports, err := readFabric(ctx, h)
	if err != nil {
		return nil, err
	}
	counters := map[string]uint64{}
	var results checkkit.Results
	for name, port := range ports {
		for key, text := range port {
			if _, named, _ := strings.Cut(text, ":"); named != "" || key == "link_layer" {
				continue // a state
			}
			n, err := parseCount(text, 10)
			if err != nil {
				results.Doubt(portSubject(name), fmt.Errorf("read %s of port %s: %w",
					checkkit.Sanitize(key, checkkit.MaxName), name, err))
				continue
			}
			counters[name+"/"+key] = n
		}
	}
	c.window.Add(h.Clock().SinceBoot, counters)
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		f, found, err := c.evaluate(name, ports[name])
		if !results.Doubt(portSubject(name), err) && found {
			results.Settle(f)
		}
	}
	c.history.save()
	return results.Done()
}

func portSubject(name string) finding.Subject {
	return finding.Subject{Kind: "infiniband-port", Name: name}
}

// readFabric returns the contents of each port's files, by port ("mlx5_0/1") and file name.
func readFabric(ctx context.Context, h *host.Host) (map[string]map[string]string, error) {
	answer, err := h.Prober.Ask(ctx, probe.ProbeRequest{Op: probe.ProbeFabric, Path: fabricDir})
	if err != nil {
		return nil, err
	}
	if answer.Errno != 0 {
		return nil, fmt.Errorf("list %s: %w", fabricDir, syscall.Errno(answer.Errno))
	}
	ports := map[string]map[string]string{}
	for key, text := range answer.Values {
		port, file := path.Split(key)
		port = checkkit.Sanitize(strings.TrimSuffix(port, "/"), checkkit.MaxName)
		if ports[port] == nil {
			ports[port] = map[string]string{}
		}
		ports[port][file] = text
	}
	return ports, nil
}

// portRates are the rules for one port, over ten minutes.
func portRates(port string) []rateRule {
	return []rateRule{
		{key: port + "/symbol_error", least: 20.0 / 600, reason: "PortErrors", text: "symbol errors"},
		{key: port + "/port_rcv_errors", least: 0.1, reason: "PortErrors", text: "receive errors"},
		{key: port + "/local_link_integrity_errors", least: 0.1, reason: "PortErrors", text: "link integrity errors"},
		{key: port + "/link_error_recovery", least: 1.0 / 601, reason: "PortErrors", text: "link recoveries"},
		{key: port + "/rx_drops", least: 100, reason: "PortErrors", text: "received packets were dropped"},
		{key: port + "/retrans_timeout_events", least: 0.1, reason: "PortRetransmits", text: "retransmission timeouts",
			info: true},
		{key: port + "/unresponsive_remote_events", least: 0.1, reason: "PortRetransmits",
			text: "times a peer did not answer", info: true},
		{key: port + "/impaired_remote_conn_events", least: 0.1, reason: "PortRetransmits",
			text: "times the connection to a peer was impaired", info: true},
	}
}

func (c *fabricCheck) evaluate(name string, port map[string]string) (finding.Finding, bool, error) {
	f := finding.Finding{Subject: portSubject(name), Severity: finding.Warning, Facts: map[string]string{}}
	for _, key := range []string{"state", "phys_state", "link_layer"} {
		f.Facts[key] = checkkit.Sanitize(port[key], checkkit.MaxName)
	}
	_, state, ok := strings.Cut(port["state"], ": ")
	if !ok {
		return f, false, fmt.Errorf("state of port %s: %q", name, checkkit.Sanitize(port["state"], checkkit.MaxName))
	}
	if state == "ACTIVE" {
		c.history.add(name)
	}
	disabled := strings.HasSuffix(port["phys_state"], "Disabled")
	if state != "ACTIVE" && !disabled && port["link_layer"] != "Ethernet" && c.history.Links[name] {
		f.Reason, f.Message = "PortDown", fmt.Sprintf("port %s is %s, its link %s", name,
			checkkit.Sanitize(state, checkkit.MaxName), checkkit.Sanitize(port["phys_state"], checkkit.MaxName))
		if state == "INIT" {
			f.Message += ": no subnet manager has configured it"
		}
		return f, true, nil
	}
	const flaps = 3
	if n, in, _ := c.window.Rise(name + "/link_downed"); n >= flaps-1 {
		f.Reason, f.BelowRaise = "PortFlapping", n < flaps
		f.Message = fmt.Sprintf("port %s lost its link %d times within %s", name, n, in.Round(time.Second))
		return f, true, nil
	}
	f.Message = "port " + name + ": "
	f, found := merge(f, exceeded(&c.window, rateLeast, portRates(name)))
	return f, found, nil
}
