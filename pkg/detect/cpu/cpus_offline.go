package cpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cpus-offline reads
//
//	/sys/devices/system/cpu/{present,online}     0-63
//	/sys/devices/system/cpu/smt/control          on, off, forceoff, notsupported, notimplemented; if some are offline
//	/proc/cmdline                                maxcpus=, nosmt; if some are offline
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu

const cpuDir = "/sys/devices/system/cpu/"

// CPUsOffline finds processors that are present and offline.
func CPUsOffline() detect.Check {
	mostOnline := 0 // at a time
	wasOff := false // SMT was off in the last run
	return detect.Check{
		ID: "cpus-offline", Domain: "cpu",
		Summary: "processors of the node are offline",
		Advice: "`dmesg | grep -i -e smpboot -e 'CPU.*offline' -e mce` shows when they went offline and why. If this " +
			"was not intended, run `echo 1 > /sys/devices/system/cpu/cpuN/online` and have the hardware checked. If " +
			"the number of processors is to stay lower, restart kubelet so that it reports the new number.",
		Doc: detect.Doc{
			Reads: []string{cpuDir + "{present,online}", cpuDir + "smt/control and /proc/cmdline, if some are offline"},
			Why:   "Kubelet and the scheduler still count the processors that are offline: all pods become slower.",
			Faults: []detect.Fault{
				{Reason: "CPUsWentOffline", Severity: finding.Warning,
					When: "fewer processors are online than earlier while the agent has been running: firmware took " +
						"them away after hardware errors, or a person did"},
				{Reason: "CPUsOffline", Severity: finding.Info, When: "processors are present and offline since " +
					"boot, and neither SMT nor the command line explains it"},
			},
			FalseAlarms: "SMT that is off, and maxcpus= or nosmt on the command line, are intended and not reported.",
		},
		Every: 5 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			present, online, err := readCPUs(h.Files)
			if err != nil {
				return nil, err
			}
			mostOnline = max(mostOnline, online)
			if online >= present {
				wasOff = false
				return nil, nil
			}
			off, err := smtIsOff(h.Files)
			if err != nil {
				return nil, err
			}
			if off && !wasOff {
				mostOnline = online // SMT explains its threads, not later losses
			}
			wasOff = off
			f := finding.Finding{
				Subject: checkkit.NodeSubject(h), Severity: finding.Info, Reason: "CPUsOffline",
				Message: fmt.Sprintf("%d of %d processors are offline", present-online, present),
				Facts:   map[string]string{"present": strconv.Itoa(present), "online": strconv.Itoa(online)},
			}
			if mostOnline > online {
				f.Severity, f.Reason = finding.Warning, "CPUsWentOffline"
				f.Message += fmt.Sprintf("; %d were online before", mostOnline)
				return []finding.Finding{f}, nil
			}
			if off {
				return nil, nil
			}
			limited, err := limitedAtBoot(h.Files)
			if err != nil || limited {
				return nil, err
			}
			return []finding.Finding{f}, nil
		},
	}
}

func readCPUs(files host.Files) (present, online int, err error) {
	if present, err = checkkit.Parse(files, cpuDir+"present", checkkit.CountCPUs); err != nil {
		return 0, 0, err
	}
	online, err = checkkit.Parse(files, cpuDir+"online", checkkit.CountCPUs)
	return present, online, err
}

func smtIsOff(files host.Files) (bool, error) {
	control, err := files.Text(cpuDir + "smt/control")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return control == "off" || control == "forceoff", nil
}

// limitedAtBoot reports whether the kernel's command line limits the processors.
func limitedAtBoot(files host.Files) (bool, error) {
	cmdline, err := files.Text("/proc/cmdline")
	if err != nil {
		return false, err
	}
	for option := range strings.FieldsSeq(cmdline) {
		if strings.HasPrefix(option, "maxcpus=") || option == "nosmp" || strings.HasPrefix(option, "nosmt") {
			return true, nil
		}
	}
	return false, nil
}
