package kernellog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// TestContainersLinesAreNeverFatal: lines that the kernel writes because of a program in a container, again and again. Its
// author needs no right but to create pods. Names of programs are his, too.
func TestContainersLinesAreNeverFatal(t *testing.T) {
	const pod = "/kubepods/pod6a3c9a52-2a55-4fd7-9a5c-7d2a1c3f8e9b"
	for name, line := range map[string]string{
		"segmentation fault":                  "java[%d]: segfault at 0 ip 0000000000401136 sp 00007ffd5e7d0a50 error 6 in java[401000+1000]",
		"trap":                                "traps: java[%d] trap invalid opcode ip:401136 sp:7ffd5e7d0a50 error:0 in java[401000+1000]",
		"protection fault":                    "traps: java[%d] general protection fault ip:401136 sp:7ffd5e7d0a50 error:0 in java[401000+1000]",
		"division":                            "traps: java[%d] trap divide error ip:401136 sp:7ffd5e7d0a50 error:0 in java[401000+1000]",
		"program called like a filesystem":    "EXT4-fs (sda1):[%d]: segfault at 0 ip 0000000000401136 sp 00007ffd5e7d0a50 error 6",
		"program called like the OOM killer":  "Out of memory: [%d]: segfault at 0 ip 0000000000401136 sp 00007ffd5e7d0a50 error 6",
		"program called like a machine check": "mce: [Hardware [%d]: segfault at 0 ip 0000000000401136 sp 00007ffd5e7d0a50 error 6",
		"its own limit": "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=" + pod + ",mems_allowed=0,oom_memcg=" + pod +
			",task_memcg=" + pod + ",task=java,pid=%d,uid=0",
		"killed for its own limit": "Memory cgroup out of memory: Killed process %d (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, " +
			"shmem-rss:0kB",
		"killed, and called like the node's": "Memory cgroup out of memory: Killed process %d (Out of memory: ) total-vm:1kB, " +
			"anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
		"an old kernel's":     "Task in " + pod + " killed as a result of limit of " + pod + " %[1]d",
		"asks for memory":     "java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=%d",
		"limit of tasks":      "cgroup: fork rejected by pids controller in " + pod + "/%d",
		"its own server":      "TCP: request_sock_TCP: Possible SYN flooding on port %d. Sending cookies.",
		"its hung filesystem": "INFO: task java:%d blocked for more than 120 seconds.",
		"a filter of calls":   "audit: type=1326 audit(1700000000.000:%d): auid=4294967295 uid=0 gid=0 pid=7 comm=\"java\" sig=31",
		"a confinement":       "audit: type=1400 audit(1700000000.000:%d): apparmor=\"DENIED\" operation=\"open\" name=\"/proc/1/environ\"",
		"an odd program":      "process 'java%d' launched '/tmp/x' with NULL argv: empty string added",
		"its network":         "IPv6: ADDRCONF(NETDEV_CHANGE): veth%d: link becomes ready",
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			tally := NewTally(newTable(t))
			for i := range 60 { // one a second: a loop
				m, ok := tally.Observe(at(float64(100+i), fmt.Sprintf(line, 1000+i)))
				if ok && m.Severity == finding.Fatal {
					t.Fatalf("line %d: %s is fatal", i, m.Rule.ID)
				}
			}
		})
	}
}
