package storage

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// ebs-limits queries volumes of Amazon EBS (/sys/class/nvme/*/model), in a child process, for the statistics that their
// NVMe controllers keep (vendor's log page D0h, little endian; the first 4 bytes are 3C23B510h):
//
//	56  µs since attachment in which more I/Os a second were requested than the volume provides
//	64  the same of throughput           72, 80  the same two of the instance, for all its volumes together
//
// https://docs.aws.amazon.com/ebs/latest/userguide/nvme-detailed-performance-stats.html. Older generations of volumes
// and instances do not support the page.

const (
	ebsShare = 5.0 / 60
	ebsModel = "Amazon Elastic Block Store"
)

// ebsLimits are the limits that a volume counts, in the order of the page.
func ebsLimits() [4]struct{ reason, text string } {
	return [4]struct{ reason, text string }{
		{"EBSVolumeIOPSExceeded", "the volume's I/Os a second"},
		{"EBSVolumeThroughputExceeded", "the volume's throughput"},
		{"EBSInstanceIOPSExceeded", "the instance's I/Os a second for EBS"},
		{"EBSInstanceThroughputExceeded", "the instance's throughput for EBS"},
	}
}

// EBSLimits finds throttled volumes of Amazon EBS.
func EBSLimits() detect.Check {
	state := &ebsState{}
	return detect.Check{
		ID: "ebs-limits", Domain: "storage",
		Summary: "a volume of Amazon EBS is throttled at its own limits or those of the instance",
		Advice: "Find what writes with `pidstat -d 5` or the io.stat files of the pods' cgroups. The volume's " +
			"limit: give it more IOPS or throughput (gp3 without a restart). The instance's: spread the pods, or " +
			"choose a larger instance; more volumes do not help.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/nvme/*/model", "log page D0h of /dev/nvme* (NVME_IOCTL_ADMIN_CMD) of EBS " +
				"volumes, in a child process"},
			Why: "What looks like a slow disk, and makes probes and image pulls time out, is a limit of the volume " +
				"or instance type.",
			Faults: []detect.Fault{
				{Reason: "EBSVolumeIOPSExceeded", Severity: finding.Warning,
					When: "more than 5 s a minute over the limit, on average of 10 minutes, as in the EKS node " +
						"monitoring agent"},
				{Reason: "EBSVolumeThroughputExceeded", Severity: finding.Warning, When: "the same of throughput"},
				{Reason: "EBSInstanceIOPSExceeded", Severity: finding.Warning,
					When: "the same of the limit of the instance"},
				{Reason: "EBSInstanceThroughputExceeded", Severity: finding.Warning,
					When: "the same of the instance's throughput"},
			},
			FalseAlarms: "None known. Bursts shorter than a minute in ten are not reported.",
		},
		Every: 10 * time.Minute, Deadline: 30 * time.Second,
		Run: state.run,
	}
}

// ebsState is kept between runs.
type ebsState struct {
	last map[string]ebsStats
}

// ebsStats are the counters of one volume.
type ebsStats struct {
	at       time.Duration // uptime
	serial   string
	exceeded [4]time.Duration
}

func (m *ebsState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, _, err := nvmeDisks(h.Files)
	if err != nil {
		return nil, err
	}
	fresh := make(map[string]ebsStats)
	var results checkkit.Results
	volumes := 0
	for _, d := range disks {
		if d.model != ebsModel || d.state != "live" {
			continue
		}
		data, err := probeDevice(ctx, h, probe.ProbeRequest{Op: probe.ProbeNVMeEBS, Path: "/dev/" + d.name})
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		volumes++
		stats := ebsStats{at: h.Clock().SinceBoot, serial: d.serial}
		if err == nil {
			stats.exceeded, err = parseEBSStats(data)
		}
		if results.Doubt(deviceSubject(d.name), err) {
			continue
		}
		fresh[d.name] = stats
		if last, known := m.last[d.name]; known && last.serial == stats.serial {
			results.Add(stats.evaluate(d, last))
		}
	}
	m.last = fresh
	if volumes == 0 {
		return nil, finding.NotApplicable("there is no volume of Amazon EBS that counts")
	}
	return results.Done()
}

func parseEBSStats(page []byte) (exceeded [4]time.Duration, err error) {
	const size, magic, first = 96, 0x3c23b510, 56
	if len(page) != size {
		return exceeded, fmt.Errorf("%d bytes, want %d", len(page), size)
	}
	if got := binary.LittleEndian.Uint32(page); got != magic {
		return exceeded, fmt.Errorf("begins with %#x, want %#x", got, magic)
	}
	for i := range exceeded {
		const most = 1 << 50 // µs: 35 years
		us := binary.LittleEndian.Uint64(page[first+8*i:])
		if us > most {
			return [4]time.Duration{}, fmt.Errorf("%d µs over a limit", us)
		}
		exceeded[i] = time.Duration(us) * time.Microsecond
	}
	return exceeded, nil
}

// evaluate compares two runs. A counter that decreased was restarted by another attachment.
func (s ebsStats) evaluate(d nvmeDisk, last ebsStats) (finding.Finding, bool) {
	passed := s.at - last.at
	if passed < time.Minute {
		return finding.Finding{}, false
	}
	type limit struct {
		reason, text string
		share        float64
	}
	var over []limit
	for i, l := range ebsLimits() {
		if share := float64(s.exceeded[i]-last.exceeded[i]) / float64(passed); share > ebsShare {
			over = append(over, limit{l.reason, fmt.Sprintf("%s (%.0f %% of the time)", l.text, min(share, 1)*100),
				share})
		}
	}
	if len(over) == 0 {
		return finding.Finding{}, false
	}
	slices.SortStableFunc(over, func(a, b limit) int { return cmp.Compare(b.share, a.share) })
	texts := make([]string, 0, len(over))
	for _, l := range over {
		texts = append(texts, l.text)
	}
	return finding.Finding{
		Subject: deviceSubject(d.name), Severity: finding.Warning, Reason: over[0].reason,
		Message: fmt.Sprintf("volume %s (%s) is held back by %s", d.name, d.serial,
			finding.JoinFirst(texts, len(texts))),
		Facts: map[string]string{"volume": d.serial},
	}, true
}
