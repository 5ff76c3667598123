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
//	/sys/devices/system/cpu/smt/control          on, off, forceoff, notsupported, notimplemented    only where some are offline
//	/proc/cmdline                                maxcpus=, nosmt: somebody wants fewer              only where some are offline
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu
//
// A processor that is present and offline does no work. One that was online a while ago was taken away by firmware,
// after hardware errors, or by a person: a warning, because kubelet goes on promising it to pods. One that never was
// online in this boot is information.
//
// Known false alarms, and what is done: sibling threads are offline on purpose where SMT is off, and processors are
// where the command line limits them; neither is told.

const cpusOfflineID = "cpus-offline"

const cpuDir = "/sys/devices/system/cpu/"

// CPUsOffline finds processors that are there and do not work.
func CPUsOffline() detect.Check {
	most := 0       // processors that were online at a time
	wasOff := false // SMT was switched off at the last look
	return detect.Check{
		ID: cpusOfflineID, Domain: "cpu",
		Summary: "processors of the node are offline",
		Advice: "dmesg | grep -i -e smpboot -e 'CPU.*offline' -e mce tells since when and why. Where nobody wanted " +
			"it: echo 1 > /sys/devices/system/cpu/cpuN/online, have the hardware looked at, and restart kubelet if " +
			"the number of processors is to stay as it is.",
		Doc: detect.Doc{
			Reads: []string{cpuDir + "{present,online}", cpuDir +
				"smt/control and /proc/cmdline, where some are offline"},
			Why: "The scheduler goes on placing pods for processors that are not there: all become slower.",
			Faults: []detect.Fault{
				{Reason: "CPUsWentOffline", Severity: finding.Warning, When: "fewer processors are online than were " +
					"while the agent has run"},
				{Reason: "CPUsOffline", Severity: finding.Info, When: "processors are present and offline, and " +
					"neither SMT nor the command line explains it"},
			},
			FalseAlarms: "SMT that is switched off, maxcpus= and nosmt on the command line.",
		},
		Every: 5 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			present, online, err := readCPUs(h.Files)
			if err != nil {
				return nil, err
			}
			most = max(most, online)
			if online >= present {
				wasOff = false
				return nil, nil
			}
			off, err := smtIsOff(h.Files)
			if err != nil {
				return nil, err
			}
			if off && !wasOff {
				most = online // the siblings are not missed; what goes after them is
			}
			wasOff = off
			f := finding.Finding{
				Check: cpusOfflineID, Subject: checkkit.NodeSubject(h), Severity: finding.Info, Reason: "CPUsOffline",
				Message: fmt.Sprintf("%d of %d processors are offline", present-online, present),
				Facts:   map[string]string{"present": strconv.Itoa(present), "online": strconv.Itoa(online)},
			}
			if most > online {
				f.Severity, f.Reason = finding.Warning, "CPUsWentOffline"
				f.Message += fmt.Sprintf("; %d were online before", most)
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
	for name, into := range map[string]*int{"present": &present, "online": &online} {
		list, err := files.Text(cpuDir + name)
		if err != nil {
			return 0, 0, err
		}
		if *into, err = checkkit.CountCPUs(list); err != nil {
			return 0, 0, fmt.Errorf("read %s%s: %w", cpuDir, name, err)
		}
	}
	return present, online, nil
}

func smtIsOff(files host.Files) (bool, error) {
	control, err := files.Text(cpuDir + "smt/control")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return control == "off" || control == "forceoff", nil
}

// limitedAtBoot reports whether the kernel's command line wants fewer processors.
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
