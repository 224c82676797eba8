package filetype

import (
	"strings"
	"testing"
)

func TestGuess(t *testing.T) {
	for head, want := range map[string]string{
		"": "empty; ",
		"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a": "a pointer of Git LFS; ",
		"PK\x03\x04\x00\x00\x00\x00\x00":                              "a zip archive, ",
		"\x80\x02\x8a\nl\xfc\x9cF":                                    "a pickle, ",
		"\x40\x00\x00\x00\x00\x00\x00\x00{\"a\"":                      "a safetensors file; ",
		"\x1f\x8b\x08":                                                "compressed with gzip; ",
		"<!doctype html>":                                             "HTML or XML; ",
		"\ufeff\r\n <html>":                                           "HTML or XML; ",
		"{\"a\": 1}":                                                  "JSON; ",
		"\n[1]":                                                       "JSON; ",
	} {
		if got := Guess([]byte(head)); !strings.HasPrefix(got, want) {
			t.Errorf("%q is %q, want %q", head, got, want)
		}
	}
	for _, head := range []string{"P", "\x80", "\x80\x04\x95", "hello", " ",
		"\x40\x00\x00\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\x7f{"} {
		if got := Guess([]byte(head)); got != "" {
			t.Errorf("%q is %q, want nothing", head, got)
		}
	}
}
