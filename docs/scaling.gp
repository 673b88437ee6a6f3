# gnuplot scaling.gp draws scaling.svg and scaling.png from scaling.tsv
stem = 'scaling'
data = 'scaling.tsv'
set datafile separator tab
set encoding utf8
set datafile missing '-'
array color[8] = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#999999', \
  '#F0E442']
colour_of(i) = color[1 + (i - 1) % 8]
dash_of(i) = 1 + (i - 1) / 8
ink = '#333333'
set border 3 lc rgb '#666666' lw 0.8
set tics nomirror out scale 0.4 textcolor rgb ink
set grid ytics lt 1 lc rgb '#E2E2E2' lw 0.8
set palette defined (0 '#FFFFFF', 1 '#56B4E9')
set style fill transparent solid 0.2 noborder
svg(width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced \
  font 'Helvetica,Arial,sans-serif,14' background rgb 'white'", width, height)
png(width, height) = sprintf("set terminal pngcairo size %d,%d enhanced \
  font 'DejaVu Sans,20' linewidth 2 pointscale 2 background rgb 'white'", 2 * width, 2 * height)

name(i) = word('B/16 L/16 H/14', i)
set logscale x 2
set xtics (8, 16, 32, 64, 128, 256, 512)
set xrange [8:516]
set xlabel 'H100 GPUs, eight a node' textcolor rgb ink
heading(text) = sprintf('{/:Bold %s}', text)
do for [ending in 'svg png'] {
  eval (ending eq 'svg' ? svg(1000, 460) : png(1000, 460))
  set output stem.'.'.ending

  set multiplot layout 1,2 margins screen 0.09, screen 0.97, screen 0.14, screen 0.72 \
    spacing screen 0.09
  set key at graph 0, 1.06 left bottom vertical maxrows 3 Left reverse samplen 2.4 spacing 1.1 \
    textcolor rgb ink
  set label 1 heading('Images a second, batch of 4096') at graph 0, 1.36 left textcolor rgb ink
  set logscale y 10
  set format y '%.0f'
  set ylabel 'images/s' textcolor rgb ink
  set yrange [1500:400000]
  plot for [i=1:3] data index i - 1 using 1:2 with linespoints lc rgb colour_of(i) lw 2 pt 7 ps 0.8 \
         title name(i) . ', 8 share experts', \
       for [i=1:3] data index i + 2 using 1:2 with linespoints lc rgb colour_of(i) lw 2 dt (6, 4) \
         pt 6 ps 0.8 title name(i) . ', 32', \
       for [i=1:3] data index i - 1 using 1:3 with lines lc rgb colour_of(i) lw 1 dt (1, 3) \
         notitle
  unset logscale y
  set label 1 heading('Time of a step of L/16, 8 share experts')
  set format y '%g'
  set ylabel 'fraction of the step, %' textcolor rgb ink
  set yrange [0:100]
  set style fill solid 0.75 noborder
  all(x) = column(4) + column(5) + column(6) + column(7)
  plot data index 1 using 1:(0):(100 * column(4) / all(0)) with filledcurves \
         lc rgb colour_of(1) title 'products', \
       data index 1 using 1:(100 * column(4) / all(0)):(100 * (column(4) + column(5)) / all(0)) \
         with filledcurves lc rgb colour_of(3) title 'update', \
       data index 1 using 1:(100 * (column(4) + column(5)) / all(0)):(100 - 100 * column(7) / all(0)) \
         with filledcurves lc rgb colour_of(5) title 'routing', \
       data index 1 using 1:(100 - 100 * column(7) / all(0)):(100) \
         with filledcurves lc rgb colour_of(2) title 'waiting for others'
  unset multiplot
}
