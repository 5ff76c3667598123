package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// network-errors reads /proc/net/dev, one line for each device of the namespace. Only cards count:
//
//	Inter-|   Receive                                                |  Transmit
//	 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
//	  eth0: 22101956   53011    0    0    0     0          0         0  5341902   37113    0    0    0     0       0          0
//
// (received drop includes packets that the card missed because it had no buffer, frame includes checksum errors), and
// /sys/class/net/X/queues/tx-N/tx_timeout, how often the watchdog found that a queue did not send. If a card has
// errors, its /sys/class/net/X/statistics show their kind.
//
// https://docs.kernel.org/networking/statistics.html,
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net-queues
//
// The Prometheus node mixin warns at 1 % of packets over an hour; TCP becomes slow at a tenth of that.

const (
	// timeoutFor is how long a timeout of a queue is reported.
	timeoutFor = 30 * time.Minute
	maxQueues  = 4096
)

// NetworkErrors finds cards that damage, lose or do not send packets.
func NetworkErrors() detect.Check {
	c := &errorsCheck{rates: counterWindow{Span: 5 * time.Minute}, timeouts: counterWindow{Span: timeoutFor}}
	return detect.Check{
		ID: "network-errors", Domain: "network",
		Summary: "a network card damages or drops packets, or stopped sending",
		Advice: "Find the kind of error with `ethtool -S X` and `ip -s -s link show dev X`. For checksum and frame " +
			"errors check the cable, the transceiver and the switch port. For missed and fifo errors the card is " +
			"overrun: enlarge its rings (`ethtool -g X`). For timeouts update firmware and driver; `dmesg` names " +
			"the queue.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/dev", "/sys/class/net/X/queues/tx-*/tx_timeout",
				"/sys/class/net/X/statistics/* of a card with errors"},
			Why: "One percent of lost packets slows every connection of every pod; a card that stopped sending " +
				"interrupts all of them for seconds.",
			Faults: append([]detect.Fault{
				{Reason: "NICTxTimeout", Severity: finding.Warning, When: "the kernel's watchdog found a queue that " +
					"did not send for 5 s, within 30 minutes; it then resets the card"},
			}, faultsOf(errorRules(""))...),
			FalseAlarms: "Frames of protocols that the node does not speak (LLDP, spanning tree) count as dropped, " +
				"about one per second: below the threshold.",
		},
		CounterBased: true,
		Every:        time.Minute, Deadline: 8 * time.Second,
		Wakes:  []detect.Wake{checkkit.KernelWake()},
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: 2 * time.Minute}},
		Run:    c.observe,
	}
}

type errorsCheck struct {
	rates    counterWindow
	timeouts counterWindow
}

// errorRules returns the rules for one card; keys are those of parseNetDev.
func errorRules(card string) []rateRule {
	return []rateRule{
		{key: card + ".rxErrors", of: card + ".rxPackets", least: 1, share: 0.01, reason: "ReceiveErrors",
			text: "received packets were damaged",
			when: "1 % of received packets are damaged, and at least one per second, over 5 minutes"},
		{key: card + ".txErrors", of: card + ".txPackets", least: 1, share: 0.01, reason: "TransmitErrors",
			text: "packets could not be sent",
			when: "1 % of sent packets fail, and at least one per second, over 5 minutes"},
		{key: card + ".rxDrops", of: card + ".rxPackets", least: 10, share: 0.01, reason: "ReceiveDrops",
			text: "received packets were dropped",
			when: "1 % of received packets are dropped, and at least ten per second, over 5 minutes"},
		{key: card + ".txDrops", of: card + ".txPackets", least: 10, share: 0.01, reason: "TransmitDrops",
			text: "packets to be sent were dropped",
			when: "1 % of sent packets are dropped, and at least ten per second, over 5 minutes"},
	}
}

func (c *errorsCheck) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	files, up := h.Files, h.Clock().SinceBoot
	cards, err := networkCards(files)
	if err != nil {
		return nil, err
	}
	cards = slices.DeleteFunc(cards, func(card networkCard) bool { return !card.adminUp })
	if len(cards) == 0 {
		return nil, finding.NotApplicable("no network card is up")
	}
	counters, err := checkkit.Parse(files, "/proc/net/dev", func(text string) (map[string]uint64, error) {
		return parseNetDev(text, cards)
	})
	if err != nil {
		return nil, err
	}
	c.rates.Add(up, counters)
	var results checkkit.Results
	c.addTimeouts(&results, files, cards, up)
	for _, card := range cards {
		results.Add(c.evaluate(files, card))
	}
	return results.Done()
}

// addTimeouts adds up the timeouts of each card's queues.
func (c *errorsCheck) addTimeouts(results *checkkit.Results, files host.Files, cards []networkCard, up time.Duration) {
	values, queues := map[string]uint64{}, 0
	for _, card := range cards {
		sum, n, err := txTimeouts(files, card, maxQueues-queues)
		if results.Doubt(finding.Subject{Kind: kindNetDevice, Name: card.name}, err) {
			continue
		}
		values[card.name] = sum
		queues += n
	}
	c.timeouts.Add(up, values)
}

func txTimeouts(files host.Files, card networkCard, most int) (sum uint64, queues int, err error) {
	names, err := files.List(card.dir + "/queues")
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "tx-") {
			continue
		}
		if queues++; queues > most {
			return 0, 0, fmt.Errorf("list %s/queues: more than %d queues of all cards", card.dir, maxQueues)
		}
		n, err := checkkit.ReadCount(files, card.dir+"/queues/"+name+"/tx_timeout")
		if err != nil {
			return 0, 0, err
		}
		sum += n
	}
	return sum, queues, nil
}

func (c *errorsCheck) evaluate(files host.Files, card networkCard) (finding.Finding, bool) {
	var faults []networkFault
	if n, in, ok := c.timeouts.Rise(card.name); ok && n > 0 {
		faults = append(faults, networkFault{reason: "NICTxTimeout",
			text: fmt.Sprintf("queues did not send %d times within %s", n, in.Round(time.Second))})
	}
	faults = append(faults, exceeded(&c.rates, rateLeast, errorRules(card.name))...)
	f, found := merge(finding.Finding{
		Subject: finding.Subject{Kind: kindNetDevice, Name: card.name},
		Message: card.name + ": ",
	}, faults)
	if found {
		f.Facts = errorFacts(files, card)
	}
	return f, found
}

// errorFacts returns the errors that a card counted since it was created. Not every driver counts them all.
func errorFacts(files host.Files, card networkCard) map[string]string {
	facts := map[string]string{}
	for fact, file := range map[string]string{
		"rxCRCErrors": "rx_crc_errors", "rxFrameErrors": "rx_frame_errors", "rxLengthErrors": "rx_length_errors",
		"rxMissedErrors": "rx_missed_errors",
		"rxFIFOErrors":   "rx_fifo_errors", "txFIFOErrors": "tx_fifo_errors", "txCarrierErrors": "tx_carrier_errors",
		"txAbortedErrors": "tx_aborted_errors",
	} {
		if n, err := checkkit.ReadCount(files, card.dir+"/statistics/"+file); err == nil && n > 0 {
			facts[fact] = fmt.Sprint(n)
		}
	}
	return facts
}

// parseNetDev reads the counters of some devices: "eth0.rxErrors".
func parseNetDev(text string, cards []networkCard) (map[string]uint64, error) {
	wanted := map[string]bool{}
	for _, card := range cards {
		wanted[card.name] = true
	}
	counters := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || !wanted[name] {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) != 16 {
			return nil, checkkit.InLine(line, errors.New("want 16 numbers"))
		}
		for key, column := range map[string]int{"rxPackets": 1, "rxErrors": 2, "rxDrops": 3, "txPackets": 9,
			"txErrors": 10, "txDrops": 11} {
			value, err := parseCount(fields[column], 10)
			if err != nil {
				return nil, checkkit.InLine(line, err)
			}
			counters[name+"."+key] = value
		}
	}
	return counters, nil
}
