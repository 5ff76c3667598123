package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// nic-allowance reads the counters of Amazon's driver ena in a child process, as ethtool -S does, because the request
// waits for the RTNL lock and for the card:
//
//	bw_in_allowance_exceeded         packets queued or dropped above the instance's bandwidth; likewise bw_out
//	pps_allowance_exceeded           … its packets per second
//	conntrack_allowance_exceeded     packets dropped because no further connection is tracked: new connections fail
//	linklocal_allowance_exceeded     dropped packets to the name server, clock and metadata service (1024 per second)
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-network-performance-ena.html
//
// No other driver has such counters.

const (
	// allowanceDriver is the only driver that counts packets over the cloud provider's limits.
	allowanceDriver = "ena"
	maxAllowances   = 32
)

// NICAllowance finds cloud instances whose network is throttled.
func NICAllowance() detect.Check {
	c := &countersCheck{window: counterWindow{Span: 15 * time.Minute}}
	return detect.Check{
		ID: "nic-allowance", Domain: "network",
		Summary: "the cloud provider throttles or drops packets: the instance exceeds its network allowance",
		Advice: "Show the counters with `ethtool -S X | grep allowance`. Use a larger instance, spread its pods, or " +
			"use fewer connections; for linklocal use NodeLocal DNSCache.",
		Doc: detect.Doc{
			Reads: []string{"the driver's counters *_allowance_exceeded (ethtool -S) of cards with the driver ena, " +
				"by a child process"},
			Why: "No counter of the kernel shows these drops: connections and DNS of pods fail without a " +
				"trace.",
			Faults:      faultsOf(allowanceRules("")),
			FalseAlarms: "Short bursts above the allowance are normal on burstable instances and are not reported.",
		},
		Every: 5 * time.Minute, Deadline: 20 * time.Second,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: 5 * time.Minute}},
		Run:    c.allowances,
	}
}

func (c *countersCheck) allowances(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := cardsOf(h.Files, allowanceDriver)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, finding.NotApplicable("no card whose driver counts exceeded allowances")
	}
	answer, err := h.Prober.Ask(ctx, probe.ProbeRequest{Op: probe.ProbeAllowances, Path: strings.Join(names, "/")})
	if err != nil {
		return nil, err
	}
	counters := map[string]uint64{}
	for key, text := range answer.Values {
		if counters[key], err = parseCount(text, 10); err != nil {
			return nil, fmt.Errorf("counter %s: %w", checkkit.Sanitize(key, checkkit.MaxName), err)
		}
	}
	c.window.Add(h.Clock().SinceBoot, counters)
	var results checkkit.Results
	for _, name := range names {
		results.Add(merge(finding.Finding{
			Subject: finding.Subject{Kind: kindNetDevice, Name: name}, Message: name + ": ",
		}, exceeded(&c.window, 9*time.Minute, allowanceRules(name))))
	}
	return results.Done()
}

// cardsOf lists the cards of a driver.
func cardsOf(files host.Files, driver string) ([]string, error) {
	cards, err := networkCards(files)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, card := range cards {
		target, err := files.Link(card.dir + "/device/driver")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil && path.Base(target) == driver && len(names) < maxAllowances {
			names = append(names, card.name)
		}
	}
	return slices.Clip(names), nil
}

// allowanceRules returns the rules for one card.
func allowanceRules(card string) []rateRule {
	rules := []rateRule{
		{key: "conntrack", least: 1.0 / 60, reason: "ConnectionAllowanceExceeded",
			text: "packets were dropped because no further connection is tracked",
			when: "one packet per minute was dropped over 10 minutes or more, because no further connection " +
				"is tracked"},
		{key: "linklocal", least: 1.0 / 60, reason: "LinkLocalAllowanceExceeded",
			text: "packets to DNS, clock or metadata were dropped",
			when: "one packet per minute to DNS, clock or metadata was dropped over 10 minutes or more"},
		{key: "pps", least: 10, reason: "PacketAllowanceExceeded",
			text: "packets were throttled by the limit of packets per second",
			when: "ten packets per second were throttled over 10 minutes or more, by the limit of packets per second"},
		{key: "bw_in", least: 10, reason: "BandwidthAllowanceExceeded",
			text: "received packets were throttled by the limit of bandwidth",
			when: "ten packets per second were throttled over 10 minutes or more, by the limit of bandwidth"},
		{key: "bw_out", least: 10, reason: "BandwidthAllowanceExceeded", text: "packets to be sent were throttled by " +
			"the limit of bandwidth"},
	}
	for i := range rules {
		rules[i].key = card + "/" + rules[i].key + "_allowance_exceeded"
	}
	return rules
}
