package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// family is a part of the kernel whose lines the rules must know.
type family struct {
	name string
	// files are patterns of paths (path.Match); one that ends with "/..." means everything beneath.
	files []string
	// words select formats: those that may report a fault. Not case-sensitive.
	words string
	// except leaves out formats that match words but do not belong to the family. Not case-sensitive.
	except string
	// level leaves out formats printed at another level.
	level level
	// unlisted adds the formats of other macros and functions whose names end like those of error printers.
	unlisted bool
	// printers are the printers that only these files use, as in the list of all printers.
	printers map[string]string
	// driver is the name of the driver if it differs from that of the module.
	driver string
	// dev is how dev_printk names driver and device; "{mod} {pci}" unless set.
	dev string
}

// anything selects every format of small files.
const anything = ``

func (f *family) printer(name string) (prefix string, ok bool) {
	if prefix, ok = f.printers[name]; ok {
		return prefix, true
	}
	if prefix, ok = printers[name]; !ok && f.unlisted && (errorSuffix.MatchString(name) || f.level != atError && otherSuffix.MatchString(name)) {
		return "{dev}: ", true
	}
	return prefix, ok
}

func (f *family) device(module string) string {
	if f.dev == "" {
		return module + " {pci}"
	}
	return strings.ReplaceAll(f.dev, "{mod}", module)
}

func (f *family) head() string {
	text := "Formats of the family " + f.name + ", written by test/kernelformats; verdicts and arguments are by " +
		"hand.\n"
	text += "files: " + strings.Join(f.files, " ") + "\n"
	if f.words != anything {
		text += "words: " + f.words + "\n"
	}
	if f.except != "" {
		text += "except: " + f.except + "\n"
	}
	return text
}

func (f *family) has(file string) bool {
	return slices.ContainsFunc(f.files, func(pattern string) bool {
		if below, ok := strings.CutSuffix(pattern, "/..."); ok {
			return strings.HasPrefix(file, below+"/")
		}
		ok, err := path.Match(pattern, file)
		if err != nil {
			panic(fmt.Sprintf("family %s: %s: %v", f.name, pattern, err))
		}
		return ok
	})
}

// formats returns the formats of the family in a tree, each once.
func (f *family) formats(t *tree) (all []printed) {
	words, except := regexp.MustCompile("(?i)"+f.words), regexp.MustCompile("(?i)"+f.except)
	var files []string
	texts := map[string]map[string]string{} // by directory
	for file, source := range t.files {
		if !f.has(file) {
			continue
		}
		files = append(files, file)
		if texts[path.Dir(file)] == nil {
			texts[path.Dir(file)] = map[string]string{}
		}
		defines(source, texts[path.Dir(file)])
	}
	slices.Sort(files)
	seen := map[string]bool{}
	for _, file := range files {
		if path.Ext(file) != ".c" && path.Ext(file) != ".h" {
			continue
		}
		for _, p := range extract(t, file, texts[path.Dir(file)], f) {
			if seen[p.format] || !words.MatchString(p.format) || f.except != "" && except.MatchString(p.format) {
				continue
			}
			seen[p.format] = true
			all = append(all, p)
		}
	}
	return all
}

// wanted reports which files of a tree the families need.
func wanted(all []family) func(string) bool {
	return func(file string) bool {
		return path.Base(file) == "Makefile" || slices.ContainsFunc(all, func(f family) bool { return f.has(file) })
	}
}

var levels = []string{"emerg", "alert", "crit", "err", "error", "warn", "warning", "notice", "info"}

// levelsOf returns the names for which LEVEL in a name stands.
func levelsOf(name string) (all []string) {
	if !strings.Contains(name, "LEVEL") {
		return []string{name}
	}
	for _, level := range levels {
		if strings.HasPrefix(name, "DM") {
			level = strings.ToUpper(level)
		}
		all = append(all, strings.ReplaceAll(name, "LEVEL", level))
	}
	return all
}
