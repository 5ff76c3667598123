package daemonset

import (
	"bufio"
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// roll is the replacement of the center's three pods, as the apiserver shows it.
type roll struct {
	pods   map[string]*rolled // by name
	faults []string
}

// rolled is a pod's name. It is away from the deletion of its pod until the next one is ready for the first time.
type rolled struct {
	uid      string
	away     bool
	replaced int
}

// observeRoll records the replacement of pods until the returned function is called; that returns the names of the
// replaced pods.
func (c *center) observeRoll(t *testing.T) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	argv := append(c.KubectlCommand(), "get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name=eventcenter", "--watch",
		"-o", `jsonpath={.metadata.name}{"|"}{.metadata.uid}{"|"}{.metadata.deletionTimestamp}{"|"}`+
			`{.status.conditions[?(@.type=="Ready")].status}{"\n"}`)
	watch := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := watch.StdoutPipe()
	if err == nil {
		err = watch.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r, began, ended := &roll{pods: map[string]*rolled{}}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			t.Log(lines.Text())
			before := len(r.pods)
			if r.see(lines.Text()); before < len(r.pods) && len(r.pods) == 3 {
				close(began)
			}
		}
	}()
	var once sync.Once
	stop := func() { once.Do(func() { cancel(); <-ended; _ = watch.Wait() }) } // it ends by being killed
	t.Cleanup(stop)
	select {
	case <-began:
	case <-ended:
	case <-time.After(harness.Patience):
		t.Error("the watch does not list three pods")
	}
	return func() (replaced []string) {
		stop()
		for _, fault := range r.faults {
			t.Error(fault)
		}
		for name, p := range r.pods {
			replaced = append(replaced, slices.Repeat([]string{name}, p.replaced)...)
		}
		slices.Sort(replaced)
		return replaced
	}
}

// see takes a line: name, UID, deletion time, readiness.
func (r *roll) see(line string) {
	fields := strings.Split(line, "|")
	if len(fields) != 4 {
		r.faults = append(r.faults, "a line of the watch: "+line)
		return
	}
	name, uid, ending, ready := fields[0], fields[1], fields[2] != "", fields[3] == "True"
	p := r.pods[name]
	if p == nil {
		r.pods[name] = &rolled{uid: uid}
		return
	}
	if uid != p.uid {
		p.uid, p.away = uid, true
		p.replaced++
	}
	switch {
	case ending && !p.away:
		p.away = true
		for other, o := range r.pods {
			if o.away && other != name {
				r.faults = append(r.faults, name+" is ended while "+other+" is away")
			}
		}
	case !ending && ready:
		p.away = false
	}
}

// A pod that is ended before another is back is noticed; a pod that is not ready for a moment is not.
func TestRoll(t *testing.T) {
	for want, lines := range map[string]string{
		"":                              "a|1||True b|2||True b|2|now|True b|2|now|False b|3||False b|3||True b|3||False a|1|now|True a|4||True",
		"a is ended while b is away":    "a|1||True b|2||True b|2|now|True b|3||False a|1|now|True",
		"a line of the watch: a|1|True": "a|1|True",
	} {
		r := roll{pods: map[string]*rolled{}}
		for line := range strings.FieldsSeq(lines) {
			r.see(line)
		}
		if got := strings.Join(r.faults, ", "); got != want {
			t.Errorf("%s: %q, want %q", lines, got, want)
		}
	}
}
