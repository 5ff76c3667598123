// Package command is the frame of a program's command line: exit codes, and verbs that ask the running program and print its
// answers.
package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

// Exit codes: part of every verb's interface, the same as nodeagent's.
const (
	Fine         = 0
	Problems     = 1
	CouldNotTell = 2
)

const askLimit = 30 * time.Second

// ErrProblems ends a verb that has already printed problems.
var ErrProblems = errors.New("problems found")

// Run executes one command line of a program, and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return Fine
	case errors.Is(err, ErrProblems):
		return Problems
	}
	fmt.Fprintln(os.Stderr, root.Name()+":", event.Plain(err.Error()))
	return CouldNotTell
}

// Root completes the root command of a program, with the flags for its directory, its address and the format of its
// output.
func (a *Asker) Root(root *cobra.Command) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		possible := strings.Fields(cmp.Or(cmd.Annotations[formats], "text json"))
		if !slices.Contains(possible, a.Output) {
			return fmt.Errorf("--output %q: must be %s", a.Output, strings.Join(possible, " or "))
		}
		a.Dir = client.Directory(root.Name(), a.Dir)
		return nil
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.Dir, "dir", "", fmt.Sprintf("directory of the data and the token (default "+
		"$XDG_STATE_HOME/%[1]s, else ./%[1]s-data)", root.Name()))
	flags.StringVar(&a.Server, "server", "", fmt.Sprintf("address of the %s to query (default: that of the last one "+
		"that ran in the directory, else %s)", root.Name(), a.Default))
	flags.StringVar(&a.CA, "ca", "", "file with the CA certificates of an https server")
	flags.StringVarP(&a.Output, "output", "o", "text", "output format: text or json")
	return root
}

// formats is the annotation of a command with its output formats, if they are others than text and json.
const formats = "formats"

// Listen adds the flags of an endpoint; without --listen, the program listens on this address.
func Listen(flags *pflag.FlagSet, e *web.Endpoint, address string) {
	flags.StringVar(&e.Address, "listen", address, "address to listen on")
	flags.StringVar(&e.CertFile, "tls-cert", "", "file with the certificate; read again when it changes")
	flags.StringVar(&e.KeyFile, "tls-key", "", "file with its key")
}

// Asker asks the running program for a verb, and prints the answers.
type Asker struct {
	client.Client
	Output string // text, json, or a format that a verb prints itself

	// Templates has the text of each answer. Text of others must pass through "plain", or a function like it: then it cannot
	// control the terminal.
	Templates string
	Functions template.FuncMap // beside plain, moment and clock
}

// Ask sends a request and decodes the response; text is the response unchanged.
func (a *Asker) Ask(cmd *cobra.Command, method, path string, body io.Reader, answer any) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), askLimit)
	defer cancel()
	return a.Decode(ctx, method, path, body, answer)
}

// Show sends a request, and prints the response.
func (a *Asker) Show(cmd *cobra.Command, method, path string, body io.Reader, name string, answer any) error {
	text, err := a.Ask(cmd, method, path, body, answer)
	if err != nil {
		return err
	}
	return a.Print(cmd, name, answer, text)
}

// Print prints a result: with -o json as JSON, which is text if the program has sent it, else by the template of a name.
func (a *Asker) Print(cmd *cobra.Command, name string, result any, text []byte) error {
	out := cmd.OutOrStdout()
	switch {
	case a.Output != "json":
		return a.write(out, name, result)
	case text != nil:
		_, err := out.Write(text)
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(result)
}

func (a *Asker) write(to io.Writer, name string, result any) error {
	t, err := template.New("verbs").Funcs(template.FuncMap{
		"plain":  func(text any) string { return event.Plain(fmt.Sprint(text)) },
		"moment": func(t time.Time) string { return t.Format(time.RFC3339) },
		"clock":  func(t time.Time) string { return t.Local().Format(time.TimeOnly) },
	}).Funcs(a.Functions).Parse(a.Templates)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if err := t.ExecuteTemplate(w, name, result); err != nil {
		return err
	}
	return w.Flush()
}

// Login returns the verb that prints a code for the pages, by the template "login". name is the default of --name; add adds to
// the query of the request.
func (a *Asker) Login(long, name string, add func(url.Values)) *cobra.Command {
	cmd := &cobra.Command{Use: "login", Short: "Print a code that opens the pages in a browser, once", Long: long, Args: cobra.NoArgs}
	cmd.Flags().StringVar(&name, "name", name, "name of the person who signs in")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{"name": {name}}
		add(query)
		answer := struct {
			web.SignInCode
			Address string `json:"-"`
		}{Address: a.Address()}
		return a.Show(cmd, http.MethodPost, "/v1/sign-in-codes?"+query.Encode(), nil, "login", &answer)
	}
	return cmd
}
