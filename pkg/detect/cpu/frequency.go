package cpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cpu-frequency reads /proc/stat, and of processors that were busy since the run before
//
//	/sys/devices/system/cpu/cpufreq/policy0/affected_cpus        0 1
//	                                       /scaling_cur_freq     1200000    kHz
//	                                       /base_frequency       2600000    kHz, of intel_pstate: sustainable
//	                                       /cpuinfo_max_freq     3900000    kHz, with or without turbo
//	                                       /scaling_{max_freq,governor}
//
// https://docs.kernel.org/admin-guide/pm/cpufreq.html

// CPUFrequency finds busy processors that are held at a low clock.
func CPUFrequency() detect.Check {
	state := &frequencyState{}
	return detect.Check{
		ID: "cpu-frequency", Domain: "cpu",
		Summary: "busy processors are held at a low clock frequency",
		Advice: "The message names the governor and the limit; `cpupower frequency-info` shows more. The governor " +
			"powersave of acpi-cpufreq never speeds up: use performance or schedutil. If neither explains it, power " +
			"or heat does: check the power supplies, the fans and the firmware's power cap (`ipmitool dcmi power " +
			"reading`).",
		Doc: detect.Doc{
			Reads: []string{"/proc/stat", cpuDir +
				"cpufreq/policy*/{scaling_cur_freq,base_frequency,cpuinfo_max_freq,scaling_max_freq," +
				"scaling_governor}, of busy processors only"},
			Why: "Pods get half of the speed that they were promised, and only the clock frequency shows it.",
			Faults: []detect.Fault{
				{Reason: "CPUFrequencyLow", Severity: finding.Warning, When: "half of the processors that are 80 % " +
					"busy run below 60 % of their base frequency (40 % of the highest one where the base is " +
					"unknown), for 5 minutes"},
			},
			FalseAlarms: "Idle processors are slow by design and are not checked. Wide vector code lowers the clock " +
				"to three quarters of the base, which is above the threshold. Virtual machines have no such files.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 5, For: 5 * time.Minute}, Clear: finding.Hold{Runs: 2}},
		Run:    state.run,
	}
}

// frequencyState is kept between runs.
type frequencyState struct {
	times map[int]cpuTimes // by processor
}

func (m *frequencyState) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	policies, err := checkkit.ListSorted(h.Files, cpuDir+"cpufreq")
	if err != nil {
		return nil, err
	}
	policies = slices.DeleteFunc(policies, func(name string) bool { return !strings.HasPrefix(name, "policy") })
	if len(policies) == 0 {
		return nil, finding.NotApplicable("the kernel does not control the clock of the processors")
	}
	before := m.times
	if m.times, err = readCPUTimes(h.Files); err != nil {
		return nil, err
	}
	var busy, slow []clockPolicy
	for _, name := range policies {
		p, err := readClockPolicy(h.Files, cpuDir+"cpufreq/"+name, before, m.times)
		if err != nil {
			return nil, err
		}
		if p.busy {
			busy = append(busy, p)
		}
		if p.slow() {
			slow = append(slow, p)
		}
	}
	if len(slow) == 0 || 2*len(slow) < len(busy) {
		return nil, nil
	}
	return []finding.Finding{slow[0].finding(h, len(slow), len(busy))}, nil
}

// clockPolicy is a group of processors that share a clock. Frequencies are in kHz.
type clockPolicy struct {
	name          string
	busy          bool
	current, base int
	cap           int // the configured limit
	governor      string
}

func (p clockPolicy) slow() bool { return p.busy && float64(p.current) < 0.6*float64(p.base) }

// readClockPolicy reads the clock only of a group with a processor that was busy for 80 % of the time.
func readClockPolicy(files host.Files, dir string, before, now map[int]cpuTimes) (clockPolicy, error) {
	p := clockPolicy{name: dir[strings.LastIndexByte(dir, '/')+1:]}
	cpus, err := affectedCPUs(files.Text(dir + "/affected_cpus"))
	if err != nil {
		return p, fmt.Errorf("read %s/affected_cpus: %w", dir, err)
	}
	p.busy = slices.ContainsFunc(cpus, func(cpu int) bool { return wasBusy(before, now, cpu) })
	if !p.busy {
		return p, nil
	}
	if p.current, err = checkkit.ReadNumber(files, dir+"/scaling_cur_freq"); err != nil {
		return p, err
	}
	if p.cap, err = checkkit.ReadNumber(files, dir+"/scaling_max_freq"); err != nil {
		return p, err
	}
	p.base, err = checkkit.ReadNumber(files, dir+"/base_frequency")
	if errors.Is(err, fs.ErrNotExist) {
		highest, err := checkkit.ReadNumber(files, dir+"/cpuinfo_max_freq")
		if err != nil {
			return p, err
		}
		p.base = highest * 2 / 3 // 60 % of it are 40 % of the highest
	} else if err != nil {
		return p, err
	}
	p.governor, err = files.Text(dir + "/scaling_governor")
	p.governor = checkkit.Sanitize(p.governor, 32)
	return p, err
}

// affectedCPUs parses "0 1". The list of a group whose processors are all offline is empty; since Linux 5.19 reading it
// fails with EBUSY.
func affectedCPUs(text string, err error) ([]int, error) {
	if errors.Is(err, syscall.EBUSY) {
		return nil, nil
	}
	var cpus []int
	for field := range strings.FieldsSeq(text) {
		cpu, numErr := strconv.Atoi(field)
		if numErr != nil {
			return nil, numErr
		}
		cpus = append(cpus, cpu)
	}
	return cpus, err
}

func wasBusy(before, now map[int]cpuTimes, cpu int) bool {
	old, known := before[cpu]
	t, is := now[cpu]
	if !known || !is || t.busy < old.busy || t.total <= old.total {
		return false
	}
	return float64(t.busy-old.busy) >= 0.8*float64(t.total-old.total)
}

func (p clockPolicy) finding(h *host.Host, slow, busy int) finding.Finding {
	mhz := func(khz int) string { return strconv.Itoa(khz/1000) + " MHz" }
	return finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "CPUFrequencyLow",
		Message: fmt.Sprintf("%d of %d busy groups of processors are slow: %s runs at %s instead of %s; its limit is "+
			"%s, its governor %s", slow, busy, p.name, mhz(p.current), mhz(p.base), mhz(p.cap), p.governor),
		Facts: map[string]string{
			"slow": strconv.Itoa(slow), "busy": strconv.Itoa(busy), "currentKHz": strconv.Itoa(p.current),
			"baseKHz":  strconv.Itoa(p.base),
			"limitKHz": strconv.Itoa(p.cap), "governor": p.governor,
		},
	}
}
