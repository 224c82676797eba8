package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"tenon.dev/data"
)

// embedded holds the images; README.md names their source.
//
//go:embed digits.csv.gz
var embedded []byte

const (
	side    = 8 // of an image, in pixels
	deepest = 16
)

// image is one handwritten digit.
type image struct {
	pixels [side * side]float32 // from 0 to 1
	label  int64                // 0 to 9
}

// load reads the named file, or the embedded one.
func load(name string) ([]image, error) {
	if name == "" {
		return read(bytes.NewReader(embedded), "the embedded file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the images cannot be read: %w", err)
	}
	defer f.Close()
	return read(f, name)
}

// read reads the images of a file, which may be compressed. Empty lines are skipped.
func read(in io.Reader, name string) ([]image, error) {
	buffered := bufio.NewReader(in)
	in = buffered
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the images cannot be read: %w", err)
	}
	if string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%s begins like a compressed file but is none: %w", name, err)
		}
		in = z
	}
	var images []image
	lines, number := bufio.NewScanner(in), 0
	for lines.Scan() {
		number++
		line := strings.TrimSuffix(lines.Text(), "\r")
		if number == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // a byte order mark, with which some programs begin a text
		}
		if line == "" {
			continue
		}
		img, err := parseImage(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, number, err)
		}
		images = append(images, img)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s, line %d has more than %d bytes; a line has %d pixels and a label", name, number+1,
			bufio.MaxScanTokenSize, side*side)
	case err != nil && in != buffered:
		return nil, fmt.Errorf("%s is cut off or damaged after line %d: %w", name, number, err)
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read after line %d: %w", name, number, err)
	case len(images) < 5:
		return nil, fmt.Errorf("%s holds %d images; give at least 5, so that one is for the test", name, len(images))
	}
	return images, nil
}

func parseImage(line string) (image, error) {
	var img image
	fields := strings.Split(line, ",")
	if len(fields) != len(img.pixels)+1 {
		return img, fmt.Errorf("a line has %d pixels and a label, apart by commas, but the values here are %d",
			len(img.pixels), len(fields))
	}
	for i, text := range fields {
		most, what := deepest, "pixel"
		if i == len(img.pixels) {
			most, what = 9, "label"
		}
		text = strings.TrimSpace(text)
		v, err := strconv.Atoi(text)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return img, fmt.Errorf("value %d, %.20q, is not a whole number", i+1, text)
		}
		if err != nil || v < 0 || v > most {
			return img, fmt.Errorf("value %d, %.20s, is no %s from 0 to %d", i+1, text, what, most)
		}
		if i < len(img.pixels) {
			img.pixels[i] = float32(v) / deepest
		} else {
			img.label = int64(v)
		}
	}
	return img, nil
}

// split sets every fifth image aside for testing.
func split(images []image) (train, test []image) {
	for i, img := range images {
		if i%5 == 4 {
			test = append(test, img)
		} else {
			train = append(train, img)
		}
	}
	return train, test
}

// shuffleLabels permutes the labels of the images.
func shuffleLabels(images []image, seed uint64) {
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(images), func(i, j int) {
		images[i].label, images[j].label = images[j].label, images[i].label
	})
}

// columns returns the pixels and labels of all images.
func columns(images []image) (pixels []float32, labels []int64) {
	for _, img := range images {
		pixels = append(pixels, img.pixels[:]...)
		labels = append(labels, img.label)
	}
	return pixels, labels
}

// table returns the images as a data set.
func table(images []image) (*data.Table, error) {
	pixels, labels := columns(images)
	return data.NewTable(data.NewColumn(pixels, 1, side, side), data.NewColumn(labels))
}
