package kernellog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
)

func at(seconds float64, text string) Record {
	up := time.Duration(seconds * float64(time.Second))
	return Record{Text: []byte(text), At: up, Up: up, UpKnown: true}
}

// said returns a tally's match of a record in short form.
func said(t *Tally, r Record) string {
	m, ok := t.Observe(r)
	if !ok {
		return "-"
	}
	text := m.Rule.ID + " " + rulestest.SubjectText(m.Subject) + " " + string(m.Severity)
	for _, flag := range []struct {
		on   bool
		name string
	}{{m.Raised, "raised"}, {m.Again, "again"}, {m.Recovered, "recovered"}} {
		if flag.on {
			text += " " + flag.name
		}
	}
	return text
}

func TestTally(t *testing.T) {
	const (
		waiting = "unregister_netdevice: waiting for lo to become free. Usage count = 1"
		lockup  = "watchdog: BUG: soft lockup - CPU#%d stuck for 22s! [java:12345]"
		pod     = "6a3c9a52-2a55-4fd7-9a5c-7d2a1c3f8e9b"
		oom     = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod" + pod + ",task_memcg=/kubepods/pod" + pod + ",task=java,pid=%d,uid=0"
		killed  = "Memory cgroup out of memory: Killed process %d (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, " +
			"shmem-rss:0kB"
		corrected = "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 5: 9c00000000000090"
		oldTask   = "Task in /kubepods/pod" + pod + " killed as a result of limit of /kubepods/pod" + pod
	)
	type step struct {
		record Record
		want   string
	}
	for name, steps := range map[string][]step{
		"words alone are no alarm until they come again": {
			{at(100, "ice 0000:88:00.0: VF 0 failed opcode 6"), "nic-driver-error device/0000:88:00.0 info raised"},
			{at(110, "ice 0000:88:00.1: VF 0 failed opcode 6"), "nic-driver-error device/0000:88:00.1 info raised"},
			{at(120, "ice 0000:88:00.0: VF 1 failed opcode 6"), "nic-driver-error device/0000:88:00.0 info raised"},
			{at(699, "ice 0000:88:00.0: VF 0 failed opcode 6"), "nic-driver-error device/0000:88:00.0 warning raised"},
			{at(2000, "ice 0000:88:00.0: VF 0 failed opcode 6"), "nic-driver-error device/0000:88:00.0 info raised"},
		},
		"dire words are an alarm at once": {
			{at(100, "ice 0000:88:00.0: VF 0 is stuck"), "nic-driver-error device/0000:88:00.0 warning raised"},
		},
		"a threshold counts": {
			{at(100, waiting), "unregister-netdevice network-device/lo warning"},
			{at(110, waiting), "unregister-netdevice network-device/lo warning"},
			{at(120, "unregister_netdevice: waiting for eth0 to become free. Usage count = 1"),
				"unregister-netdevice network-device/eth0 warning"},
			{at(1290, waiting), "unregister-netdevice network-device/lo warning raised"},
			{at(1320, waiting), "unregister-netdevice network-device/lo warning"}, // 110 is outside the window
			{at(1330, waiting), "unregister-netdevice network-device/lo warning raised"},
		},
		"errors that follow each other at once are counted": append(
			slices.Repeat([]step{{at(100, corrected), "machine-check-corrected cpu/1 info raised"}}, 9),
			step{at(100, corrected), "machine-check-corrected cpu/1 warning raised"},
			step{at(100, "[Hardware Error]: Corrected error, no action required."),
				"machine-check-corrected cpu/1 warning raised again"},
		),
		"a port reports an error, the device the rest, and the port is well again": {
			{at(20.4466, "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0"),
				"pcie-fatal device/0000:00:01.0 fatal raised"},
			{at(20.4469, "pcieport 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), "+
				"type=Inaccessible, (Unregistered Agent ID)"), "pcie-fatal device/0000:00:01.0 fatal raised again"},
			{at(20.4556, "pcieport 0000:00:01.0: AER: device recovery successful"),
				"pcie-fatal device/0000:00:01.0 fatal recovered"},
		},
		"time that goes back begins anew": {
			{at(100, waiting), "unregister-netdevice network-device/lo warning"},
			{at(110, waiting), "unregister-netdevice network-device/lo warning"},
			{at(1, waiting), "unregister-netdevice network-device/lo warning"},
		},
		"lockups of several processors are fatal together": {
			{at(100, fmt.Sprintf(lockup, 1)), "soft-lockup cpu/1 warning raised"},
			{at(200, fmt.Sprintf(lockup, 2)), "soft-lockup cpu/2 warning raised"},
			{at(300, fmt.Sprintf(lockup, 3)), "soft-lockup cpu/3 fatal raised"},
			{at(3000, fmt.Sprintf(lockup, 3)), "soft-lockup cpu/3 warning raised"},
		},
		"the lines of an oops are one": {
			{at(100, "BUG: unable to handle page fault for address: ffff9a8b40000000"),
				"kernel-oops node fatal raised"},
			{at(100, "#PF: supervisor read access in kernel mode"), "-"},
			{at(100.001, "Oops: 0000 [#1] PREEMPT SMP NOPTI"), "kernel-oops node fatal raised again"},
			{at(100.2, "Kernel panic - not syncing: Fatal exception"), "kernel-panic node fatal raised"},
			{at(100.3, "---[ end Kernel panic - not syncing: Fatal exception ]---"),
				"kernel-panic node fatal raised again"},
			{at(200, "Oops: 0000 [#2] PREEMPT SMP NOPTI"), "kernel-oops node fatal raised"},
		},
		"the killed process belongs to the pod of the line before": {
			{at(100, fmt.Sprintf(oom, 11)), "container-oom pod/" + pod + " info raised"},
			{at(100.1, fmt.Sprintf(killed, 11)), "container-oom pod/" + pod + " info raised again"},
			{at(100.2, fmt.Sprintf(killed, 12)), "container-oom-killed process/java info raised"},
			{at(100.3, fmt.Sprintf(oom, 13)), "container-oom pod/" + pod + " info raised"},
			{at(200, fmt.Sprintf(killed, 13)), "container-oom-killed process/java info raised"},
		},
		"4.19 logs the pod first and the process twice": {
			{at(100, oldTask), "container-oom pod/" + pod + " info raised"},
			{at(100, "Memory cgroup out of memory: Kill process 11 (java) score 1985 or sacrifice child"),
				"container-oom pod/" + pod + " info raised again"},
			{at(100, "Killed process 11 (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"),
				"container-oom pod/" + pod + " info raised again"},
		},
		"an error of the boot before is none of this one": {
			{at(3, "BERT: Error records from previous boot:"), "last-boot-hardware-error node warning raised"},
			{at(3, "[Hardware Error]: event severity: fatal"), "last-boot-hardware-error node warning raised again"},
			{at(90, "{1}[Hardware Error]: event severity: fatal"), "cper-fatal node fatal raised"},
		},
		"links go down while the machine starts": {
			{at(9, "r8169 0000:01:00.0 enp1s0: Link is Down"), "-"},
			{at(900, "r8169 0000:01:00.0 enp1s0: Link is Down"), "nic-link-down network-device/enp1s0 warning raised"},
			{at(901, "r8169 0000:01:00.0 enp1s0: Link is Up - 1Gbps/Full - flow control rx/tx"),
				"nic-link-down network-device/enp1s0 warning recovered"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tally := NewTally(newTable(t))
			for i, s := range steps {
				if diff := cmp.Diff(s.want, said(tally, s.record)); diff != "" {
					t.Errorf("step %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestTallyIsBounded(t *testing.T) {
	tally := NewTally(newTable(t))
	for i := range 10 * maxSubjects {
		tally.Observe(at(float64(i),
			fmt.Sprintf("unregister_netdevice: waiting for veth%d to become free. Usage count = 1", i)))
	}
	if len(tally.counts) > maxSubjects || tally.oldest.Len() != len(tally.counts) {
		t.Errorf("%d subjects in the map, %d in the list, limit %d", len(tally.counts), tally.oldest.Len(), maxSubjects)
	}
}
