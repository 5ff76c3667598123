package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

const (
	askLimit = 30 * time.Second
	width    = 30 // columns of the waterfall
)

// remote is the tracecenter to query.
func (o *options) remote() *remote.Client {
	return &remote.Client{Dir: o.directory(), Server: o.server, Default: "http://" + defaultListen, CA: o.ca, Token: o.token}
}

// ask sends a request to the server, and prints the response unchanged if JSON is wanted.
func (o *options) ask(ctx context.Context, w io.Writer, path string, into any) (printed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	text, err := o.remote().Decode(ctx, http.MethodGet, path, nil, into)
	if err != nil || o.output != "json" {
		return false, err
	}
	_, err = w.Write(text)
	return true, err
}

func newPod(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "pod NAMESPACE/NAME|UID",
		Short: "What happened to a pod, and whose fault was it?",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var parts []string
			for _, part := range strings.Split(args[0], "/") {
				parts = append(parts, url.PathEscape(part))
			}
			if len(parts) > 2 || slices.Contains(parts, "") {
				return fmt.Errorf("%q: must be NAMESPACE/NAME or a UID", args[0])
			}
			var pod api.Pod
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/pods/"+strings.Join(parts, "/"), &pod)
			if err != nil {
				return err
			}
			missed := false
			for i := range pod.Acts {
				if missed = missed || pod.Acts[i].Outcome == verdict.Missed; !printed {
					printAct(cmd.OutOrStdout(), &pod.Acts[i])
				}
			}
			if missed {
				return errProblems
			}
			return nil
		},
	}
}

func printAct(w io.Writer, a *api.Act) {
	outcome := string(a.Outcome)
	if outcome == "" {
		outcome = "open"
	}
	if a.Why != "" {
		outcome += " (" + a.Why + ")"
	}
	fmt.Fprintf(w, "%s of %s/%s: %s, %.1f s", a.Act, plain(a.Namespace), plain(a.Name), outcome, a.Judged)
	if a.User > 0 {
		fmt.Fprintf(w, " without %.1f s of its user", a.User)
	}
	fmt.Fprintf(w, "\n  uid %s, node %s, owner %s, at %s\n", plain(a.UID), orDash(a.Node), orDash(a.Owner), a.At.Format(time.RFC3339))
	if a.Reason != "" {
		fmt.Fprintf(w, "  reason: %s (%s)", plain(a.Reason), plain(a.Class))
		if a.First != a.Reason && a.First != "" {
			fmt.Fprintf(w, ", first %s", plain(a.First))
		}
		for _, r := range a.Others {
			fmt.Fprintf(w, ", also %s", plain(string(r)))
		}
		info := stage.Describe(a.Cost)
		fmt.Fprintf(w, "\n  stage:  %s, of %s\n", info.Name, info.Owner)
		if a.Detail != "" {
			fmt.Fprintf(w, "  text:   %s\n", plain(a.Detail))
		}
		fmt.Fprintf(w, "  to do:  %s\n", plain(a.Advice))
	}
	end := 0.0
	for _, b := range a.Bars {
		end = max(end, b.From+b.Seconds)
	}
	for _, b := range a.Bars {
		fmt.Fprintf(w, "  %-19s |%s| %6.1f s", plain(b.Name), bar(b, end), b.Seconds)
		if b.Uncertainty >= 0.1 {
			fmt.Fprintf(w, " ±%.1f", b.Uncertainty)
		}
		if b.Open {
			fmt.Fprint(w, ", open")
		}
		fmt.Fprintln(w)
	}
}

func bar(b api.Bar, end float64) string {
	column := func(at float64) int { return min(width, max(0, int(at/max(end, 0.001)*width))) }
	from := min(column(b.From), width-1)
	to := max(from+1, column(b.From+b.Seconds))
	return strings.Repeat(" ", from) + strings.Repeat("#", to-from) + strings.Repeat(" ", width-to)
}

func newSLIs(o *options) *cobra.Command {
	var window, namespace, nodes string
	cmd := &cobra.Command{
		Use:   "slis",
		Short: "How many deliveries are in time?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.SLIs
			query := url.Values{"window": {window}, "namespace": {namespace}, "nodes": {nodes}}
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/slis?"+query.Encode(), &answer)
			if err != nil || printed {
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s until %s, the watch is %.0f s behind\n", answer.Window, answer.AsOf.Format(time.RFC3339), answer.Lag)
			fmt.Fprintf(w, "%-9s %8s %10s %9s %7s %6s %9s %8s\n", "ACT", "SUCCESS", "WITH USER", "DELIVERED", "SYSTEM", "USER", "EXCLUDED", "UNKNOWN")
			for _, i := range answer.SLIs {
				fmt.Fprintf(w, "%-9s %8s %10s %9d %7d %6d %9d %8d\n", i.Act, percent(i.Success), percent(i.WithUser), i.Delivered, i.System, i.User,
					i.Excluded, i.Unknown)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&window, "window", "5m", "5m, 1h, 1d or 7d")
	cmd.Flags().StringVar(&namespace, "namespace", "", "only pods of a namespace")
	cmd.Flags().StringVar(&nodes, "nodes", "", "only pods of nodes, separated by commas")
	return cmd
}

// percent returns a dash if there is no value, below sli.Enough samples.
func percent(ratio *float64) string {
	if ratio == nil {
		return fmt.Sprintf("(<%d)", sli.Enough)
	}
	return fmt.Sprintf("%.2f %%", 100**ratio)
}

func newTerminating(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "terminating",
		Short: "Which pods are Terminating for more than 10 minutes and their grace period?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var found []follow.Terminating
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/terminating", &found)
			if err != nil {
				return err
			}
			for _, t := range found {
				if !printed {
					fmt.Fprintf(cmd.OutOrStdout(), "%s/%s  %s  node %s  %s  %s\n", plain(t.Namespace), plain(t.Name), t.For.Round(time.Second),
						orDash(t.Node), plain(string(t.Reason)), plain(t.Detail))
				}
			}
			if len(found) > 0 {
				return errProblems
			}
			return nil
		},
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return plain(s)
}

// plain makes foreign text safe for one line of a terminal.
func plain(s string) string { return event.Plain(s) }
