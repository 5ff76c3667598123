package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

func newVerify(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read the whole journal, and compare it with the state that the center shows",
		Long: `Read the whole journal and its checksums, and compare the resulting state with the center's last checkpoint, which
is at most 5 minutes old. It reads the center's directory, also while the center runs, and changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := eventcenter.Verify(cmd.Context(), o.directory())
			if err != nil {
				return err
			}
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), v)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), verification(v))
			}
			if err == nil && !v.Fine() {
				err = errProblems
			}
			return err
		},
	}
}

// verification returns the result for people.
func verification(v eventcenter.Verification) string {
	var w strings.Builder
	fmt.Fprintf(&w, "journal %s: offsets %d to %d\n", v.Journal, v.Oldest, v.Newest)
	writeLost(&w, v.Gaps)
	for _, d := range v.Differences {
		fmt.Fprintf(&w, "DIFFERS: node %s of %s: the checkpoint has %s, the journal has %s\n", event.Plain(d.Node),
			event.Plain(d.Cluster), event.Plain(d.Checkpoint), event.Plain(d.Rebuilt))
	}
	if v.Fine() && v.Checkpoint == 0 {
		w.WriteString("the whole journal can be read; there is no checkpoint to compare yet\n")
	} else if v.Fine() {
		fmt.Fprintf(&w, "the whole journal can be read, and matches the checkpoint of offset %d\n", v.Checkpoint)
	}
	return w.String()
}

// writeLost lists the unreadable offsets of the journal.
func writeLost(w io.Writer, gaps []journal.Gap) {
	for _, g := range gaps {
		fmt.Fprintf(w, "LOST: offsets %d to %d: %s\n", g.From, g.To, event.Plain(g.Reason))
	}
}

// problemsOf is the result of a verb that has done as much as possible.
func problemsOf(gaps []journal.Gap, err error) error {
	if err == nil && len(gaps) > 0 {
		return errProblems
	}
	return err
}

func newBackup(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the journal and the checkpoints into an archive, also while the center runs",
		Long: `Write the journal and the checkpoints into an archive, also while the center runs. The archive of
a damaged journal has all that can be read; the command names lost parts, and the exit code is 1.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Backup(cmd.Context(), o.directory(), args[0])
			if err != nil {
				return err
			}
			if o.json() {
				return problemsOf(m.Gaps, printJSON(cmd.OutOrStdout(), m))
			}
			writeLost(cmd.OutOrStdout(), m.Gaps)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, up to offset %d\n", event.Plain(args[0]), len(m.Files),
				m.Newest)
			return problemsOf(m.Gaps, err)
		},
	}
}

func newSalvage(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "salvage DIR NEW",
		Short: "Copy all that can be read of a damaged directory into a new one",
		Long: `Copy all that can be read of a center's damaged directory DIR into the directory NEW, with which the center can
continue: the journal's UUID and offsets stay. Stop the center first. DIR is not changed. If events are lost, the command
names them, and the exit code is 1.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := eventcenter.Salvage(cmd.Context(), args[0], args[1], slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			if o.json() {
				return problemsOf(done.Gaps, printJSON(cmd.OutOrStdout(), done))
			}
			writeLost(cmd.OutOrStdout(), done.Gaps)
			for _, name := range done.Unread {
				fmt.Fprintf(cmd.OutOrStdout(), "UNREAD: %s\n", event.Plain(name))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d events, up to offset %d\n", event.Plain(args[1]), done.Events,
				done.Newest)
			if len(done.Unread) > 0 && err == nil {
				err = errProblems
			}
			return problemsOf(done.Gaps, err)
		},
	}
}

func newRestore(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "Create a directory from an archive; it must not have a journal yet",
		Long: `Create the center's directory from an archive. Events after the backup are missing, and their offsets will be
given to other events: the journal gets a new UUID, by which consumers notice. The next start creates a new token.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Restore(args[0], o.directory())
			if err != nil {
				return err
			}
			if o.json() {
				return printJSON(cmd.OutOrStdout(), m)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, up to offset %d; the journal is now %s\n",
				event.Plain(o.directory()), len(m.Files), m.Newest, m.Journal)
			return err
		},
	}
}
