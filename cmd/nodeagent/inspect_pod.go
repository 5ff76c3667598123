package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

func newInspectPod(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "pod NAMESPACE/NAME",
		Short: "Print why one pod of this node is stuck: stage, since when, blocker, holder, next step",
		Long: `Print why one pod is stuck: its stage, since when, the blocker, the holder, and the next step. The command
asks the apiserver, kubelet and the runtime for this pod, and reads its objects on the node; it names each source that
does not answer. It changes nothing.

Exit codes: 0 the pod is fine, or still has time; 1 it is stuck, failed, not here, or gone and left objects behind;
2 could not tell.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := parsePodName(args[0])
			if err != nil {
				return err
			}
			answer, err := explainPod(cmd.Context(), o, namespace, name)
			if err != nil {
				return err
			}
			return o.answer(cmd.OutOrStdout(), answer, func(w io.Writer) error { return printAnswer(w, answer, time.Now()) },
				answerExit(answer))
		},
	}
}

// podLimit bounds the whole command, even if a part hangs.
const podLimit = 15 * time.Second

// explainPod abandons calls that hang: they end with the process.
func explainPod(ctx context.Context, o *options, namespace, name string) (podstage.Answer, error) {
	hangs := fmt.Errorf("discovery of kubelet and the runtime hangs: no answer within %s", podLimit)
	limited, cancel := context.WithTimeoutCause(ctx, podLimit-host.ReplyGrace, hangs)
	defer cancel()
	answer, err := host.Abandon(limited, func(context.Context) (podstage.Answer, error) {
		cfg, err := o.load(ctx)
		if err != nil {
			return podstage.Answer{}, err
		}
		return agent.ExplainPod(ctx, cfg, namespace, name)
	})
	if errors.Is(err, hangs) {
		return podstage.Evaluate(podstage.Facts{Namespace: namespace, Name: name, Now: host.Now().Wall,
			Apiserver: podstage.Source{Asked: true, Err: err}}), nil
	}
	return answer, err
}

// parsePodName rejects impossible pod names: the name becomes part of requests and of commands to copy.
func parsePodName(text string) (namespace, name string, err error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		return "", "", fmt.Errorf("pod %q: want NAMESPACE/NAME", hosterr.Clip(text))
	}
	if len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", "", fmt.Errorf("pod %q: no pod can have this name: want NAMESPACE/NAME of lower case letters, "+
			"digits, '-' and '.'", hosterr.Clip(text))
	}
	return namespace, name, nil
}

// answerExit: a stuck pod is a problem; one in order, or within its time, is not.
func answerExit(a podstage.Answer) error {
	switch a.Verdict {
	case podstage.Fine, podstage.Waiting:
		return nil
	case podstage.Stuck:
		return &exitError{Code: exitProblems}
	}
	return &exitError{Code: exitCouldNotTell}
}

// printAnswer prints an answer in five lines, and a sixth with the failed reads if they may matter. Events are not
// among them: most agents may not read them, and the answer says so if it would have needed them.
func printAnswer(w io.Writer, a podstage.Answer, now time.Time) error {
	s := screenOf(w)
	colours := map[podstage.Verdict]string{podstage.Fine: green, podstage.Waiting: green, podstage.Stuck: red,
		podstage.Unknown: yellow}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s\n", s.paint(colours[a.Verdict], strings.ToUpper(string(a.Verdict))),
		s.paint(bold, a.Namespace+"/"+a.Name), a.Stage)
	since := "not known"
	if !a.Since.IsZero() {
		since = fmt.Sprintf("%s (%s ago)", a.Since.UTC().Format(time.RFC3339),
			max(now.Sub(a.Since), 0).Round(time.Second))
	}
	const indent = 11
	line := func(label, text string) {
		fmt.Fprintf(&b, "  %-*s%s\n", indent-2, label, s.wrap(cmp.Or(text, "-"), indent, indent))
	}
	line("since", since)
	line("blocker", a.Blocker)
	line("holder", a.Holder)
	line("next", a.Next)
	if unread := unreadSources(a); len(unread) > 0 && a.Verdict != podstage.Fine {
		line("unread", strings.Join(unread, ", ")+" (-o json has the reasons)")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func unreadSources(a podstage.Answer) []string {
	var names []string
	for _, e := range a.Evidence {
		if e.Failed && e.Source != "events" && !slices.Contains(names, e.Source) {
			names = append(names, e.Source)
		}
	}
	return names
}
