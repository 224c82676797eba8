module tenon.dev

go 1.26
