package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

// Impossible pod names are rejected, and quoted.
func TestParsePodName(t *testing.T) {
	for text, valid := range map[string]bool{
		"shop/web-0": true, "kube-system/kube-proxy.x7": true,
		"web-0": false, "": false, "/": false, "shop/": false, "/web-0": false, "a/b/c": false, "../../etc": false,
		"shop/web 0": false, "shop/web;reboot": false, "sh\x1b[31mop/web-0": false, "shop/web-0\n": false,
		"Shop/web-0": false, "shop/" + strings.Repeat("a", 254): false, "shop/\xff": false,
	} {
		_, _, err := parsePodName(text)
		if (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\x1b\n") || !utf8.ValidString(err.Error())) {
			t.Errorf("%q is printed as it is: %v", text, err)
		}
	}
}

func TestPrintAnswer(t *testing.T) {
	a := podstage.Answer{Namespace: "shop", Name: "web-0", Verdict: podstage.Stuck, Stage: podstage.EndVolumes,
		Since: time.Date(2026, 11, 22, 11, 50, 0, 0, time.UTC), Blocker: "1 volumes are still mounted: /data (ext4)",
		Next: "end what holds it", Evidence: []podstage.Evidence{{Source: "kubelet", Text: "forbidden", Failed: true}}}
	var out bytes.Buffer
	if err := printAnswer(&out, a, time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	want := `STUCK shop/web-0: terminating-volumes
  since    2026-11-22T11:50:00Z (10m0s ago)
  blocker  1 volumes are still mounted: /data (ext4)
  holder   -
  next     end what holds it
  unread   kubelet (-o json has the reasons)
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	for verdict, code := range map[podstage.Verdict]int{podstage.Fine: exitFine, podstage.Waiting: exitFine,
		podstage.Stuck: exitProblems, podstage.Unknown: exitCouldNotTell} {
		got := exitFine
		if exit, ok := answerExit(podstage.Answer{Verdict: verdict}).(*exitError); ok { //nolint:errorlint // as it is
			got = exit.Code
		}
		if got != code {
			t.Errorf("%s: exit code %d, want %d", verdict, got, code)
		}
	}
}

// The verb inspect has a subcommand for pods, and still takes kinds.
func TestInspectTakesKindsAndPod(t *testing.T) {
	root := newRoot()
	for args, want := range map[string]string{"inspect": "inspect", "inspect mount": "inspect",
		"inspect mount cgroup": "inspect", "inspect pod shop/web-0": "pod"} {
		cmd, _, err := root.Find(strings.Fields(args))
		if err != nil || cmd.Name() != want {
			t.Errorf("%s: %v, %v", args, cmd.Name(), err)
		}
	}
}
